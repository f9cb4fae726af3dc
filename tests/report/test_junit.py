from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from lxml import etree
from msgspec.structs import replace

from blockaudit.records.report import Report, Suppressed
from blockaudit.report import junit
from tests.report import hostile, samples

SCHEMA = Path(__file__).parent / "schemas" / "junit-10.xsd"


@cache
def _schema() -> Any:
    return etree.XMLSchema(etree.parse(SCHEMA))


def _suites(*reports: Report) -> Any:
    """The document's root, valid against the schema, with every count in it checked."""
    root = etree.fromstring(junit.render_many(reports).encode())
    _schema().assertValid(root)
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases)
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(count)) == sum(case.find(tag) is not None for case in cases)
    for count in ("tests", "failures", "errors"):
        assert int(root.get(count)) == sum(int(suite.get(count)) for suite in root)
    return root


def _case(root: Any, name: str) -> Any:
    return next(case for case in root.iter("testcase") if case.get("name") == name)


def test_a_report_with_every_rule_in_it_validates() -> None:
    root = _suites(hostile.EVERY_RULE)
    text = "\n".join(root.itertext())
    assert all(f"{f.code} {f.name}" in text for f in hostile.FINDINGS)


@settings(deadline=None, max_examples=50)
@given(hostile.reports)
def test_any_report_validates_and_fails_where_it_is_not_accepted(report: Report) -> None:
    root = _suites(report, report)
    broken = int(root.get("failures")) + int(root.get("errors"))
    if report.verdict != "accepted":
        assert broken > 0
    elif not report.count("error"):
        assert broken == 0


def test_a_field_is_a_case() -> None:
    root = _suites(samples.REJECTED)
    assert list(_case(root, "decoder.self_attention.norm_in.family")) == []
    failure = _case(root, "decoder.self_attention.norm_in.epsilon").find("failure")
    assert failure.get("type") == "N201 epsilon-mismatch"
    assert failure.get("message") == "error: epsilon differs in layers 0-31"
    assert "declared: 1e-06" in failure.text
    assert "what to do: set rms_norm_eps" in failure.text
    skipped = _case(root, "decoder.mlp.norm_in.epsilon").find("skipped")
    assert skipped.get("message").startswith("not checked at headers level")


def test_a_field_that_another_finding_names_as_well_fails_with_it() -> None:
    rows = (*samples.ROWS, samples.row("decoder.final_norm.epsilon", False, declared=1e-6, stored=1e-5))
    finding = replace(samples.EPSILON, also=("decoder.final_norm",))
    root = _suites(samples.report(verdict="rejected", contract=rows, findings=(finding,)))
    assert _case(root, "decoder.final_norm.epsilon").find("failure") is not None


def test_what_does_not_reject_is_skipped() -> None:
    root = _suites(samples.REJECTED)
    assert _case(root, "S104 dtype-mismatch checkpoint").find("skipped").get("message") == "warning: two dtypes"
    strict = _suites(samples.report(verdict="rejected", findings=(samples.DTYPE,)))
    assert _case(strict, "S104 dtype-mismatch checkpoint").find("error") is not None


def test_a_suppressed_finding_is_skipped_with_its_reason() -> None:
    held = Suppressed(samples.EPSILON, "waiver", "agreed", "ml-platform", "2027-01-31")
    root = _suites(samples.report(contract=samples.ROWS, suppressed=(held,)))
    skipped = _case(root, "decoder.self_attention.norm_in.epsilon").find("skipped")
    assert skipped.get("message") == "waived: agreed, ml-platform, until 2027-01-31"
    assert int(root.get("failures")) == int(root.get("errors")) == 0


@pytest.mark.parametrize(
    ("report", "tag"), [(samples.ACCEPTED, None), (samples.REJECTED, "failure"), (samples.UNVERIFIED, "error")]
)
def test_the_verdict_is_a_case(report: Report, tag: str | None) -> None:
    case = next(c for c in _suites(report).iter("testcase") if c.get("classname") == "verdict")
    assert [inner.tag for inner in case] == ([tag] if tag else [])


def test_several_reports_are_suites_of_one_document() -> None:
    assert [suite.get("name") for suite in _suites(samples.ACCEPTED, samples.REJECTED)] == ["fixtures/tiny_llama"] * 2
