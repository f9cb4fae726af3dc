"""Every injected fault, in every mode."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.trace.faults import check

pytestmark = pytest.mark.soak
TABLE = check.table()
# Of ten top edits nine have to be right; sites, rules and layers all.
_RIGHT = 0.9


def test_every_fault_is_located_and_named(tmp_path: Path) -> None:
    wrong = {name: check.wrong(fault, check.run(fault, tmp_path)) for name, fault in TABLE.items()}
    assert {name: said for name, said in wrong.items() if said.keys() - {"edit"}} == {}
    edits = [name for name, said in wrong.items() if "edit" in said]
    assert len(edits) <= (1 - _RIGHT) * len(TABLE), edits


def test_a_clean_candidate_of_each_family_is_accepted(tmp_path: Path) -> None:
    for family in sorted({fault.family for fault in TABLE.values()}):
        report = check.clean(family, tmp_path)
        assert (report.verdict, report.findings) == ("accepted", ()), family
