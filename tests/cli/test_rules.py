from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blockaudit.rules.registry import entries
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]


def test_rules_are_one_line_each(blockaudit: Run) -> None:
    outcome = blockaudit("rules")
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert [line.split()[:3] for line in lines] == [[e.rule.code, e.rule.name, e.rule.severity] for e in entries()]
    assert "\x1b" not in outcome.out


def test_rules_as_json(blockaudit: Run) -> None:
    rows = json.loads(blockaudit("rules", "--format", "json").out)
    assert [r["code"] for r in rows] == sorted(e.rule.code for e in entries())
    assert all(list(r) == ["code", "name", "severity", "summary"] for r in rows)


def test_rules_as_markdown_is_the_document(blockaudit: Run) -> None:
    document = Path(__file__).parents[2] / "docs" / "rules.md"
    assert blockaudit("rules", "--format", "markdown").out == document.read_text(encoding="utf-8")


@pytest.mark.parametrize("asked", ["N201", "n201", "epsilon-mismatch", " EPSILON-MISMATCH "])
def test_a_rule_is_found_by_code_and_by_name(blockaudit: Run, asked: str) -> None:
    outcome = blockaudit("explain", asked)
    assert outcome.status == 0
    assert outcome.out.startswith("N201 epsilon-mismatch  error  (norms; failure lab 12, 39)\nTwo witnesses give")
    for heading in ("What it means", "Why it matters", "Example", "What to do"):
        assert f"\n\n{heading}\n  " in outcome.out


def test_a_rule_that_leaves_the_audit_unverified_says_so(blockaudit: Run) -> None:
    first = blockaudit("explain", "C101").out.splitlines()[0]
    assert first == "C101 config-missing  warning  (configuration; leaves the audit unverified)"


def test_a_rule_as_json(blockaudit: Run) -> None:
    rule = json.loads(blockaudit("explain", "K104", "--format", "json").out)
    assert (rule["name"], rule["group"], rule["lab"]) == ("prefix-mismatch", "keys", [])
    assert rule["what_it_means"]
    assert rule["what_to_do"]


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("epsilon-mismach", "; did you mean epsilon-mismatch?"), ("N99", "; its group has N101 to N207"), ("zzz", "")],
)
def test_what_no_rule_is_called(blockaudit: Run, asked: str, hint: str) -> None:
    outcome = blockaudit("explain", asked)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"blockaudit: error: no rule {asked!r}")
    assert hint in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("argv", [["rules"], ["explain", "N201"]])
def test_an_unknown_format(blockaudit: Run, argv: list[str]) -> None:
    outcome = blockaudit(*argv, "--format", "yaml")
    assert outcome.status == 2
    assert outcome.err.startswith(f"blockaudit: error: unknown format 'yaml': blockaudit {argv[0]} writes text")
