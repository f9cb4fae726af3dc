from __future__ import annotations

from typing import Any

from blockaudit.manifest.load import library
from blockaudit.manifest.wiring import wiring
from blockaudit.records.contract import ContractRow, Statement
from blockaudit.records.wiring import AddMark, NormMark, Wiring
from blockaudit.report.html import wired
from tests.report import conformance_samples, samples


def ran(declared: Any, executed: Any, field: str) -> ContractRow:
    agrees = declared == executed
    return ContractRow(
        field, {"declared": Statement(declared, "", "a"), "executed": Statement(executed, "", "b")}, agrees
    )


def adds(drawn: Wiring | None) -> tuple[AddMark, ...]:
    assert drawn is not None
    return drawn.stacks[0].blocks[0].adds


LLAMA = wiring(library("llama").manifest)
NORM_IN = "decoder.self_attention.norm_in"


def test_without_a_graph_there_is_nothing_executed_to_draw() -> None:
    assert wired.executed(LLAMA, samples.ROWS) is None


def test_what_agrees_leaves_the_drawing_as_it_is() -> None:
    assert wired.executed(LLAMA, [ran("rmsnorm", "rmsnorm", f"{NORM_IN}.family")]) == LLAMA


def test_the_executed_family_and_offset_are_drawn() -> None:
    rows = [ran("rmsnorm", "layernorm", f"{NORM_IN}.family"), ran(0, 1, f"{NORM_IN}.scale_offset")]
    assert adds(wired.executed(LLAMA, rows))[0].branches[0].norm_in == NormMark("layernorm (1 + w)", NORM_IN)


def test_a_norm_that_is_not_executed_is_not_drawn_and_one_that_is_only_executed_is() -> None:
    rows = [ran(True, False, f"{NORM_IN}.present"), ran(False, True, "decoder.mlp.norm_out.present")]
    attention, mlp = adds(wired.executed(LLAMA, rows))
    assert attention.branches[0].norm_in is None
    assert mlp.branches[0].norm_out == NormMark("norm", "decoder.mlp.norm_out")


def test_branches_are_drawn_as_they_are_joined() -> None:
    (joined,) = adds(wired.executed(LLAMA, [ran(False, True, "decoder.parallel")]))
    assert [b.name for b in joined.branches] == ["self_attention", "mlp"]
    swapped = ["gated_mlp", "causal_self_attention"]
    first, second = adds(wired.executed(LLAMA, [ran(swapped[::-1], swapped, "decoder.branch_order")]))
    assert (first.branches[0].name, first.state, second.branches[0].name) == ("mlp", "x", "self_attention")


def test_executed_factors_are_drawn() -> None:
    rows = [
        ran(1.0, 0.5, "decoder.residual.shortcut_scale"),
        ran(1.0, 0.22, "decoder.residual.mlp_branch_scale"),
    ]
    attention, mlp = adds(wired.executed(LLAMA, rows))
    assert (attention.shortcut, mlp.shortcut) == ("0.5", "0.5")
    assert (attention.branches[0].factor, mlp.branches[0].factor) == ("", "0.22")


def test_the_first_divergence_is_marked_whatever_kind_of_layer_it_is_in() -> None:
    first = conformance_samples.site("layers.7.mlp.norm_in", passed=False)
    report = conformance_samples.report(conformance_samples.run(first=first))
    sites = {"decoder.mlp[moe].norm_in", "decoder.self_attention.norm_in", "decoder.mlp[moe]"}
    assert wired.marked(report, sites) == {"decoder.mlp[moe].norm_in"}


def test_warnings_mark_nothing() -> None:
    assert wired.marked(samples.report(findings=(samples.DTYPE,)), {"checkpoint"}) == frozenset()
