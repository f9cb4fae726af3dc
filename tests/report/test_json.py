from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.records.contract import WITNESSES, ContractRow, Statement
from blockaudit.records.report import Finding, Report
from blockaudit.report import json_report
from blockaudit.report.plain import plain
from tests.report import samples

VALIDATOR = Draft202012Validator(resources.schema("report"))

# Any text that Python can hold, lone surrogates too.
texts = st.text(st.characters(), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
statements = st.builds(Statement, values, texts, texts)
rows = st.builds(
    ContractRow,
    texts.filter(bool),
    st.dictionaries(st.sampled_from(WITNESSES), statements),
    st.none() | st.booleans(),
)
findings = st.builds(
    Finding,
    st.from_regex(r"[A-Z][0-9]{3}", fullmatch=True),
    st.sampled_from(["epsilon-mismatch", "missing-key"]),
    st.sampled_from(["error", "warning", "note"]),
    texts,
    texts.filter(bool),
    st.lists(texts, max_size=3).map(tuple),
    values,
    values,
    texts,
    texts,
    st.lists(st.integers(1, 99), max_size=3).map(tuple),
)
reports = st.builds(
    samples.report,
    verdict=st.sampled_from(["accepted", "rejected", "unverified"]),
    contract=st.lists(rows, max_size=4).map(tuple),
    findings=st.lists(findings, max_size=4).map(tuple),
    not_checked=st.lists(texts, max_size=4, unique=True).map(tuple),
    manifest=st.none() | st.just(samples.LLAMA),
    evaluation_state=st.dictionaries(texts, values, max_size=3),
)


@pytest.mark.parametrize("report", [samples.ACCEPTED, samples.REJECTED, samples.UNVERIFIED])
def test_every_report_validates(report: Report) -> None:
    VALIDATOR.validate(json.loads(json_report.render(report)))


@given(reports)
def test_round_trip(report: Report) -> None:
    document = json_report.to_dict(report)
    VALIDATOR.validate(document)
    assert json_report.to_dict(json_report.from_dict(document)) == document
    assert json.loads(json_report.render(report)) == document
    assert json.loads(json_report.render_many([report])) == document


@given(reports)
def test_bytes_are_ascii_stable_and_one_line_each_among_several(report: Report) -> None:
    line = json_report.render_many([report])
    assert line.isascii()
    assert line.count("\n") == 1
    assert json_report.render_many([report, report]) == line + line
    assert json_report.render(report) == json_report.render(report)


def test_document_is_the_contracts() -> None:
    document = json_report.to_dict(samples.REJECTED)
    assert list(document) == [
        "schema", "kind", "verdict", "level", "tool", "subject", "manifest", "contract", "findings", "not_checked",
        "gates", "evaluation_state", "summary",
    ]  # fmt: skip
    assert document["contract"][1] == {
        "field": "decoder.self_attention.norm_in.epsilon",
        "declared": 1e-06,
        "stored": 1e-05,
        "executed": None,
        "measured": None,
        "agrees": False,
        "evidence": {"declared": "by declared", "stored": "by stored"},
    }
    assert list(document["contract"][1]) == ["field", *WITNESSES, "agrees", "evidence"]
    assert list(document["findings"][0]) == [
        "code", "name", "severity", "subject", "tensors", "message", "expected", "observed", "evidence", "help", "lab",
    ]  # fmt: skip
    assert len(document["findings"][0]["tensors"]) == 32
    assert list(document["subject"]["dtypes"]) == ["BF16", "F32"]
    assert document["summary"] == {"errors": 1, "warnings": 1, "notes": 1, "checked": 4, "unknown": 1}
    assert document["tool"] == {"name": "blockaudit", "version": "0.1.0"}


def test_one_report_is_indented() -> None:
    assert json_report.render(samples.ACCEPTED).startswith('{\n "schema": "blockaudit/report/1",\n "kind"')


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        ((1, (math.nan,)), [1, ["NaN"]]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({1: True}, {"1": True}),
        (1e-06, 1e-06),
    ],
)
def test_plain_values(value: Any, written: Any) -> None:
    assert plain(value) == written


def test_plain_refuses_what_json_cannot_carry() -> None:
    with pytest.raises(TypeError, match="cannot carry a object"):
        plain(object())


def test_surrogates_survive() -> None:
    report = samples.report(findings=(Finding("F101", "unreadable-file", "error", "a\udcffb", "no text"),))
    assert "a\\udcffb" in json_report.render(report)


def test_another_document_is_no_report() -> None:
    with pytest.raises(RequestError, match="expected schema 'blockaudit/report/1', found None"):
        json_report.from_dict({})


def _objects(schema: Any) -> list[dict[str, Any]]:
    """Every object schema in `schema`, itself included; a condition (`if`) describes no object and names no type."""
    below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    here = [schema] if isinstance(schema, dict) and {"properties", "type"} <= schema.keys() else []
    return here + [found for part in below for found in _objects(part)]


def test_schema_is_sound_and_closed() -> None:
    schema = resources.schema("report")
    Draft202012Validator.check_schema(schema)
    assert all(found["additionalProperties"] is False for found in _objects(schema))


@pytest.mark.parametrize("place", ["", "tool", "subject", "manifest", "summary"])
def test_schema_refuses_what_it_does_not_know(place: str) -> None:
    document = json_report.to_dict(samples.REJECTED)
    (document[place] if place else document)["surprise"] = 1
    assert not VALIDATOR.is_valid(document)
