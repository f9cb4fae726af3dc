from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from blockaudit.records.report import Place, Report, Suppressed
from blockaudit.report import sarif
from blockaudit.rules import documentation, registry
from tests.report import conformance_samples, hostile, samples

SCHEMA = Path(__file__).parent / "schemas" / "sarif-2.1.0.json"
# RFC 3986: what may stand in a URI reference; a colon in the first segment would make a scheme of it.
URI = re.compile(r"(?:(?:file|hf)://)?(?:[A-Za-z0-9._~@/-]|%[0-9A-F]{2})+")


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def _log(*reports: Report) -> dict[str, Any]:
    """The log, valid against the schema, with every place and index in it checked."""
    text = sarif.render_many(reports)
    assert text.isascii()
    log = json.loads(text)
    _validator().validate(log)
    for run in log["runs"]:
        rules = run["tool"]["driver"]["rules"]
        for result in run["results"]:
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            for place in (*result["locations"], *result.get("relatedLocations", ())):
                assert URI.fullmatch(place["physicalLocation"]["artifactLocation"]["uri"])
                assert place["physicalLocation"]["region"]["startLine"] >= 1
    return log


def _run(report: Report) -> dict[str, Any]:
    return _log(report)["runs"][0]


def test_a_report_with_every_rule_in_it_validates() -> None:
    run = _run(hostile.EVERY_RULE)
    assert {r["ruleId"] for r in run["results"]} == {e.rule.code for e in registry.entries()}
    assert len(run["results"]) == 2 * len(registry.entries())
    # A lone surrogate is JSON to Python alone.
    json.dumps(run, ensure_ascii=False).encode()


@settings(deadline=None, max_examples=50)
@given(hostile.reports)
def test_any_report_validates(report: Report) -> None:
    _log(report, report)


@pytest.mark.parametrize(
    "conformance", [conformance_samples.CLEAN, conformance_samples.FAULTY, conformance_samples.EXTREME]
)
def test_a_conformance_run_is_summed_up(conformance: Any) -> None:
    run = _run(conformance_samples.report(conformance))
    first = run["properties"]["conformance"]["firstDivergence"]
    assert (first is None) == (conformance.first is None)


def test_a_run_that_did_not_end_was_not_executed_successfully() -> None:
    cut = replace(conformance_samples.CLEAN, unfinished="memory ran out in layer 2")
    invocation = _run(conformance_samples.report(cut))["invocations"][0]
    assert invocation["executionSuccessful"] is False
    assert "memory ran out" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_a_rule_is_documented_in_full() -> None:
    run = _run(samples.report(findings=(samples.EPSILON,), rules=documentation.texts()))
    rule = run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]]
    assert (rule["id"], rule["name"], rule["defaultConfiguration"]["level"]) == ("N201", "epsilon-mismatch", "error")
    assert rule["shortDescription"]["text"] == "Two witnesses give different epsilons."
    assert "Why it matters: " in rule["help"]["text"]
    assert "**What to do.**" in rule["help"]["markdown"]
    assert rule["properties"]["tags"] == ["norms", "lab-12", "lab-39"]


def test_a_report_without_rules_takes_them_from_its_findings() -> None:
    rules = _run(samples.REJECTED)["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["K102", "N201", "S104"]
    assert samples.EPSILON.help in rules[1]["help"]["text"]


def test_a_result_says_where() -> None:
    finding = replace(samples.EPSILON, places=(Place("my model/held.json", 51), Place("my model/config.json", 23)))
    result = _run(samples.report(findings=(finding,)))["results"][0]
    physical = result["locations"][0]["physicalLocation"]
    assert physical == {
        "artifactLocation": {"uri": "my%20model/held.json", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 51}
    }  # fmt: skip
    assert result["relatedLocations"][0]["physicalLocation"]["region"] == {"startLine": 23}
    logical = result["locations"][0]["logicalLocations"]
    assert logical[0]["fullyQualifiedName"] == "decoder.self_attention.norm_in"
    assert logical[1]["fullyQualifiedName"] == "model.layers.0.input_layernorm.weight"


def test_a_finding_without_a_place_is_at_the_source() -> None:
    found = _run(samples.REJECTED)["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert found == "fixtures/tiny_llama"
    module = replace(samples.SUBJECT, source="my/model.py:build", format="module")
    run = _run(samples.report(subject=module, findings=(samples.DTYPE,)))
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my/model.py"


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/abs/a b.json", "file:///abs/a%20b.json"),
        ("hf://org/name@main/config.json", "hf://org/name@main/config.json"),
        ("c:/x", "c%3A/x"),
        ("n\udcffe", "n%FFe"),
        ("../x", "../x"),
    ],
)
def test_paths_are_uri_references(path: str, uri: str) -> None:
    run = _run(samples.report(findings=(replace(samples.DTYPE, places=(Place(path),)),)))
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_fingerprints_hold_still_and_tell_findings_apart() -> None:
    moved = replace(samples.EPSILON, places=(Place("a", 9),), observed=1e-4, message="epsilon is another")
    first, second, again = (
        [r["partialFingerprints"] for r in _run(samples.report(findings=found))["results"]]
        for found in ((samples.EPSILON, samples.DTYPE), (moved, samples.DTYPE), (samples.EPSILON, samples.EPSILON))
    )
    assert first == second
    assert first[0] != first[1]
    assert again[0] == first[0] != again[1]


def test_suppressed_findings_say_by_whom() -> None:
    held = Suppressed(samples.DTYPE, "waiver", "kept for the old runtime", "ml-platform", "2027-01-31")
    plain, waived = _run(samples.report(findings=(samples.EPSILON,), suppressed=(held,)))["results"]
    assert plain["suppressions"] == []
    assert waived["suppressions"] == [
        {"kind": "external", "status": "accepted",
         "justification": "waiver: kept for the old runtime, owner ml-platform, until 2027-01-31"}
    ]  # fmt: skip
    assert "suppressions" not in _run(samples.REJECTED)["results"][0]


def test_several_reports_are_one_log_of_runs_with_a_category_each() -> None:
    log = _log(samples.ACCEPTED, samples.REJECTED, conformance_samples.report(conformance_samples.CLEAN))
    ids = [run["automationDetails"]["id"] for run in log["runs"]]
    assert ids[0] == "blockaudit/inspection/headers/fixtures/tiny_llama/"
    assert len(set(ids)) == 3
    assert [run["invocations"][0]["exitCode"] for run in log["runs"]] == [0, 1, 0]


def test_a_name_makes_no_link_and_no_argument() -> None:
    finding = replace(samples.DTYPE, message="[a](https://evil.example) {0} model.layers.{l}.x")
    text = _run(samples.report(findings=(finding,)))["results"][0]["message"]["text"]
    assert text == "[a\\](https://evil.example) {{0}} model.layers.{l}.x"


def test_what_is_too_much_for_code_scanning_is_counted() -> None:
    run = _run(samples.report(verdict="rejected", findings=(samples.DTYPE,) * 30_000))
    assert len(run["results"]) == 20_000
    assert "10,000 more findings" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
