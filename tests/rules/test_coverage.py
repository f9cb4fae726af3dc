"""No rule without a checkpoint that fires it and one that nearly does."""

from __future__ import annotations

from collections import Counter

import pytest

from blockaudit.rules import registry
from tests.rules import (
    test_adapters,
    test_branches,
    test_containers,
    test_files,
    test_keys,
    test_maps,
    test_norms,
    test_parts,
    test_quantised,
    test_rows,
    test_shapes,
    test_traces,
)
from tests.support.audit import Fires, Near

TABLES = (
    test_files, test_keys, test_shapes, test_quantised, test_norms, test_branches, test_containers, test_adapters,
    test_parts,
)  # fmt: skip
CASES = [case for table in TABLES for case in table.CASES]
# No manifest value can be pinned here, so that execution alone can disagree: cases of test_rows.
EXECUTED_ONLY = {
    "call-order-mismatch", "shortcut-not-identity", "dropout-placement-mismatch", "dropout-owner-mismatch",
    "dropout-unexpected",
}  # fmt: skip
# Fires where torch is installed alone: tests/graph has both cases, in test_families.py, test_training.py,
# test_residual_faults.py, test_scores.py and test_joins.py.
NEEDS_TORCH = {
    "graph-unclassified", "dropout-active-in-eval", "residual-dropped", "residual-duplicated", "causal-leak",
    "score-residual-mismatch", "parameter-unconsumed", "residual-shape-mismatch",
}  # fmt: skip
# Fires where numbers are compared alone: tests/trace/test_cases.py has both cases through the command, test_traces.py
# has them on runs made by hand.
NEEDS_NUMBERS = {"trace-divergence", "trace-non-finite", "site-missing", "probe-insufficient", "inputs-changed"}
# Fires where a waiver is past its day: tests/cli/test_waivers.py has both cases.
NEEDS_WAIVERS = {"waiver-expired"}
# Fires where a map is checked alone: test_maps.py has both cases.
NEEDS_A_MAP = {e.rule.name for e in registry.entries() if e.rule.code[0] == "M"}
NAMES = {e.rule.name for e in registry.entries()}


@pytest.mark.parametrize(
    "name", sorted(NAMES - EXECUTED_ONLY - NEEDS_TORCH - NEEDS_NUMBERS - NEEDS_WAIVERS - NEEDS_A_MAP)
)
def test_every_rule_fires_and_nearly_fires(name: str) -> None:
    kinds = {type(case) for case in CASES if case.rule == name}
    assert Fires in kinds, f"no checkpoint of tests/rules fires {name}"
    assert Near in kinds, f"no checkpoint of tests/rules nearly fires {name}"


def test_rules_of_execution_have_rows() -> None:
    assert {*EXECUTED_ONLY} <= {*test_rows.FIELDS}


def test_rules_of_numbers_have_both_cases() -> None:
    assert {rule for rule, *_ in test_traces.FIRES.values()} == NEEDS_NUMBERS
    assert {rule for rule, _ in test_traces.NEAR.values()} == NEEDS_NUMBERS


def test_rules_of_maps_have_both_cases() -> None:
    assert {case.rule for case in test_maps.CASES if isinstance(case, test_maps.Fires)} == NEEDS_A_MAP
    assert {case.rule for case in test_maps.CASES if isinstance(case, test_maps.Near)} == NEEDS_A_MAP


def test_cases_name_rules_that_exist() -> None:
    beside = {name for case in CASES for name in case.beside or ()}
    assert {case.rule for case in CASES} | beside <= NAMES


def test_no_case_is_written_twice() -> None:
    twice = [key for key, n in Counter((type(c), c.rule, c.name) for c in CASES).items() if n > 1]
    assert twice == []
