"""N and T rules where the numbers contradict the contract: the witness, its layers, and one fault named once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.manifest.load import library
from blockaudit.reconcile.assemble import reconcile
from blockaudit.reconcile.audit import Audit
from blockaudit.records.conformance import Conformance, Diagnosis
from blockaudit.records.contract import ContractRow, Statement
from blockaudit.records.report import Finding
from blockaudit.rules import registry
from tests.report import conformance_samples as runs

TINY = Path(__file__).parents[2] / "fixtures" / "tiny_llama"
EPSILON, OTHER = runs.EPSILON, "decoder.mlp.norm_in.epsilon"


@cache
def _sound() -> Audit:
    """A checkpoint with nothing wrong in its files."""
    checkpoint = open_checkpoint(str(TINY))
    reconciled = reconcile(checkpoint, library("llama").manifest, checkpoint.config, whole=False)
    return Audit(checkpoint, checkpoint.config, "trace", reconciled)


def said(*rows: ContractRow, run: Conformance | None = None) -> list[Finding]:
    """What all rules say of that checkpoint under a contract of these rows alone."""
    audit = _sound()
    assert audit.reconciled is not None
    changed = replace(audit, reconciled=replace(audit.reconciled, rows=rows), conformance=run)
    return [f for f in registry.run(registry.entries(), changed) if f.severity != "note"]


def measured(field: str, declared: Any, seen: Any, layers: str = "1", **others: Any) -> ContractRow:
    """A row on which the numbers disagree with the manifest, and what other witnesses say."""
    told: dict[Any, Statement] = {"declared": Statement(declared, "manifest", "manifest")}
    told |= {w: Statement(v, f"by {w}", f"bytes of {w}") for w, v in others.items()}
    told["measured"] = Statement(seen, f"rows of {field}", "numbers", layers=layers)
    return ContractRow(field, told, False)


def test_nothing_is_said_of_a_sound_checkpoint() -> None:
    assert said() == []


def test_the_numbers_name_their_layers() -> None:
    (finding,) = said(measured(EPSILON, 1e-6, 1e-5, stored=1e-6))
    assert finding.name == "epsilon-mismatch"
    assert finding.message == "epsilon is declared 1e-06 and measured as 1e-05 in layer 1"
    assert finding.evidence == f"declared: manifest; measured: rows of {EPSILON}"


def test_witnesses_of_one_mind_are_named_together() -> None:
    (finding,) = said(measured(EPSILON, 1e-6, 1e-5, "", executed=1e-5))
    assert finding.message == "epsilon is declared 1e-06 and executed and measured as 1e-05"
    assert finding.evidence == f"declared: manifest; executed: by executed; measured: rows of {EPSILON}"


def test_a_witness_that_says_a_third_thing_is_in_the_evidence() -> None:
    (finding,) = said(measured(EPSILON, 1e-6, 1e-5, stored=1e-3))
    assert finding.message == "epsilon is declared 1e-06 and stored as 0.001"
    assert finding.evidence.endswith(f"stored: by stored; measured: rows of {EPSILON}")


def test_sites_that_measure_the_same_in_the_same_layers_are_one_finding() -> None:
    (finding,) = said(*(measured(f, 1e-6, 1e-5, "0-2") for f in (EPSILON, OTHER)))
    assert finding.message == (
        "epsilon is declared 1e-06 and measured as 1e-05 in layers 0-2; the same at decoder.mlp.norm_in"
    )
    apart = said(*(measured(f, 1e-6, 1e-5, str(i)) for i, f in enumerate((EPSILON, OTHER))))
    assert sorted(f.message.rpartition(" in ")[2] for f in apart) == ["layer 0", "layer 1"]


SCALE = "decoder.residual.shortcut_scale"
FIRES: list[tuple[ContractRow, list[str], str]] = [
    (measured("decoder.final_norm.present", True, False, "", stored=True), ["final-norm-missing"], "measured as false"),
    (measured("decoder.final_norm.present", False, True, ""), ["final-norm-unexpected"], "measured as true"),
    (measured("decoder.self_attention.inner.q.present", True, False), ["qk-norm-mismatch"], "in layer 1"),
    (measured("decoder.mlp.norm_out.present", True, False, "0-3"), ["norm-missing"], "in layers 0-3"),
    (measured("decoder.mlp.norm_out.present", False, True, "2"), ["norm-unexpected"], "in layer 2"),
    (measured("decoder.mlp.norm_in.placement", "pre_branch", "post_add"), ["placement-mismatch"], "as post_add"),
    (measured("decoder.mlp.norm_in.scale_offset", 1, 0, stored=1), ["scale-offset-mismatch"], "measured as 0"),
    (measured("decoder.mlp.norm_in.instance", "mlp.norm_in", "self_attention.norm_in"), ["norm-shared"], "in layer 1"),
    (
        measured("decoder.dropout.mlp_output.active", False, True),
        ["dropout-active-in-eval"],
        "as true in layer 1",
    ),
    (measured("decoder.final_norm.bias", True, False, "", stored=True), ["norm-bias-missing"], "measured as false"),
    (measured("decoder.final_norm.bias", False, True, ""), ["norm-bias-unexpected"], "measured as true"),
    (measured("decoder.mlp.bias.up", True, False, stored=True), ["branch-bias-missing"], "as false in layer 1"),
    (measured("decoder.mlp.bias.up", False, True, stored=False), ["branch-bias-unexpected"], "as true in layer 1"),
    (measured(SCALE, 1.0, 1e-4), ["residual-dropped"], "measured as 0.0001"),
    (measured(SCALE, 1.0, 2.0003), ["residual-scale-mismatch", "residual-duplicated"], "in layer 1"),
    (measured(SCALE, 1.0, 0.5), ["residual-scale-mismatch"], "measured as 0.5"),
]


@pytest.mark.parametrize(("row", "names", "says"), FIRES, ids=[f"{row.field}: {says}" for row, _, says in FIRES])
def test_what_the_numbers_contradict_has_its_own_rule(row: ContractRow, names: list[str], says: str) -> None:
    found = said(row)
    assert [f.name for f in found] == names
    assert all(says in f.message for f in found)
    assert all("measured: rows of" in f.evidence for f in found)


def test_a_norm_of_another_family_has_no_bias_to_miss() -> None:
    site = "decoder.final_norm"
    found = said(measured(f"{site}.family", "layernorm", "rmsnorm"), measured(f"{site}.bias", True, False, stored=True))
    assert [f.name for f in found] == ["norm-family-mismatch"]


def test_a_norm_that_is_measured_elsewhere_has_moved() -> None:
    left, entered = "decoder.mlp.norm_in.present", "decoder.mlp.norm_post.present"
    (finding,) = said(measured(left, True, False), measured(entered, False, True))
    assert finding.name == "placement-mismatch"
    assert finding.message == (
        "decoder.mlp.norm_in is declared, and as measured in layer 1 the norm stands at norm_post"
    )


def test_an_edit_that_has_a_row_is_one_fault() -> None:
    """The diagnosis names the field beside the divergence, the row's rule is the other finding: there is no third."""
    edit = (Diagnosis(EPSILON, "1", 1e-6, 1e-5, 0.9998, "epsilon-mismatch"),)
    run = runs.run(sites=runs.SITES, first=runs.FAULTY.first, diagnosis=edit, explained=True)
    found = said(measured(EPSILON, 1e-6, 1e-5), run=run)
    assert [f.name for f in found] == ["epsilon-mismatch", "trace-divergence"]
