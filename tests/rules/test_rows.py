"""Rules that read the contract table: every field that a rule claims fires it, whichever witness disagrees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from blockaudit.reconcile.audit import Audit
from blockaudit.records.contract import ContractRow, Statement
from blockaudit.rules import registry

# rule: (field, declared, seen)
FIELDS: dict[str, list[tuple[str, Any, Any]]] = {
    "norm-family-mismatch": [("decoder.mlp.norm_in.family", "rmsnorm", "layernorm")],
    "epsilon-mismatch": [("decoder.mlp.norm_in.epsilon", 1e-6, 1e-5)],
    "scale-offset-mismatch": [("decoder.mlp.norm_in.scale_offset", 1, 0)],
    "norm-axes-mismatch": [
        ("decoder.mlp.norm_in.reduction_axes", [-1], [-2]),
        ("decoder.mlp.norm_in.scale", "per_channel", "scalar"),
    ],
    "norm-work-dtype-mismatch": [
        ("decoder.mlp.norm_in.work_dtype", "float32", "bfloat16"),
        ("decoder.mlp.norm_in.cast_order", "cast_before_scale", "cast_after_scale"),
    ],
    "norm-formula-mismatch": [
        ("decoder.mlp.norm_in.epsilon_location", "inside", "outside"),
        ("decoder.mlp.norm_in.variance_correction", 0, 1),
        ("decoder.mlp.norm_in.center", False, True),
    ],
    "placement-mismatch": [("decoder.mlp.norm_in.placement", "pre_branch", "post_add")],
    "parallel-sequential-mismatch": [("decoder.parallel", True, False)],
    "call-order-mismatch": [("decoder.branch_order", ["self_attention", "mlp"], ["mlp", "self_attention"])],
    "branch-count-mismatch": [
        ("decoder.branch_order", ["self_attention", "mlp"], ["self_attention"]),
        ("decoder.branch_order", ["self_attention", "mlp"], ["self_attention", "cross_attention", "mlp"]),
    ],
    "branch-input-mismatch": [
        ("decoder.mlp.reads", "state", "self_attention.norm_in"),
        ("decoder.cross_attention.sources.k", "memory", "state"),
    ],
    "branch-scale-mismatch": [
        ("decoder.residual.attention_branch_scale", 1.0, 0.5),
        ("decoder.residual.cross_attention_branch_scale", 1.0, 0.5),
        ("decoder.residual.mlp_branch_scale", 1.0, 0.5),
    ],
    "residual-scale-mismatch": [("decoder.residual.shortcut_scale", 1.0, 2.0)],
    "residual-source-mismatch": [("decoder.residual.shortcut_source", "state", "normalised_state")],
    "embedding-scale-mismatch": [("decoder.embedding.scale", 1.0, 12.0)],
    "logit-scale-mismatch": [
        ("logits.scale", 1.0, 0.125), ("logits.softcap", 30.0, None), ("decoder.self_attention.softcap", 50.0, None),
    ],
    "shortcut-not-identity": [
        ("decoder.residual.shortcut", "identity", "gate"), ("decoder.residual.update", "add", "interpolate_retract"),
    ],
    "dropout-placement-mismatch": [
        ("decoder.dropout.mlp_output.position", "before_add", "after_add"),
        ("decoder.dropout.attention_output.position", "before_add", "shortcut"),
        ("decoder.dropout.attention_output.granularity", "element", "channel"),
        ("decoder.dropout.mlp_output.scaling", "inverted", "none"),
        ("decoder.dropout.drop_path.schedule", "linear_in_depth", "constant"),
    ],
    "dropout-owner-mismatch": [
        ("decoder.dropout.attention_probability.p", 0.1, 0.3), ("decoder.dropout.mlp_output.p", 0.1, 0.0),
    ],
    "score-residual-mismatch": [("decoder.self_attention.score_route", "mean", "sum")],
    "dropout-unexpected": [("decoder.dropout.attention_output.p", 0.0, 0.1)],
    "layer-count-mismatch": [("decoder.layers", 2, 3)],
}  # fmt: skip
EACH = [(rule, *values) for rule, rows in FIELDS.items() for values in rows]


def row(field: str, declared: Any, seen: Any, agrees: bool | None, witness: str = "executed") -> ContractRow:
    said = {"declared": Statement(declared, "manifest", "manifest"), witness: Statement(seen, "operators", "operators")}
    return ContractRow(field, cast("Any", said), agrees)


def fired(*rows: ContractRow) -> list[Any]:
    """Findings on a table alone: nothing is missing, unexpected or of another shape."""
    binding = SimpleNamespace(gaps=(), unexpected=(), templates=(), renames=(), foreign={}, tensors={}, claimed=1)
    shapes = SimpleNamespace(dimensions=(), transposed=(), other=())
    declared = SimpleNamespace(spans=())
    reconciled = SimpleNamespace(rows=rows, binding=binding, shapes=shapes, ties=(), declared=declared)
    audit = Audit(cast("Any", SimpleNamespace(faults=(), readable=True)), {}, "graph", cast("Any", reconciled))
    entries = [e for e in registry.entries() if e.rule.name in FIELDS]
    return [f for entry in entries for f in entry.check(audit)]


@pytest.mark.parametrize("witness", ["executed", "measured"])
@pytest.mark.parametrize(("rule", "field", "declared", "seen"), EACH)
def test_a_disagreement_is_one_finding_of_one_rule(
    rule: str, field: str, declared: Any, seen: Any, witness: str
) -> None:
    (finding,) = fired(row(field, declared, seen, False, witness))
    assert (finding.name, finding.expected, finding.observed) == (rule, declared, seen)
    assert finding.severity == "error"
    assert finding.subject == field.rpartition(".")[0]
    assert witness in finding.message


@pytest.mark.parametrize("agrees", [True, None])
@pytest.mark.parametrize(("rule", "field", "declared", "seen"), EACH)
def test_no_disagreement_is_no_finding(rule: str, field: str, declared: Any, seen: Any, agrees: bool | None) -> None:
    assert fired(row(field, declared, seen, agrees)) == []


def test_sites_with_one_and_the_same_disagreement_are_one_finding() -> None:
    sites = ("decoder.self_attention.norm_in", "decoder.mlp.norm_in", "decoder.final_norm")
    (finding,) = fired(*(row(f"{site}.epsilon", 1e-6, 1e-5, False) for site in sites))
    assert all(site in f"{finding.subject} {finding.message}" for site in sites)


def test_sites_that_disagree_otherwise_are_findings_of_their_own() -> None:
    """BERT's embedding norm at 1e-12 and its encoder norms at 1e-5."""
    found = fired(
        row("encoder.embed_norm.epsilon", 1e-12, 1e-5, False), row("encoder.mlp.norm_post.epsilon", 1e-12, 1e-6, False)
    )
    assert [f.observed for f in found] == [1e-5, 1e-6]
