"""Reports made by hand, with every kind of row and finding in them."""

from __future__ import annotations

from typing import Any

from blockaudit.records.contract import ContractRow, Statement, Witness
from blockaudit.records.report import Finding, ManifestChoice, Report, Subject

SUBJECT = Subject(
    source="fixtures/tiny_llama",
    format="safetensors",
    files=("model.safetensors",),
    tensors=21,
    parameters=1_234_567,
    bytes=2_469_134,
    dtypes={"F32": 1, "BF16": 20},
)
LLAMA = ManifestChoice("llama", "llama", "config", 1.0, "0" * 64)


def row(field: str, agrees: bool | None, required: bool = False, **said: Any) -> ContractRow:
    """A row of values; each witness cites itself as evidence."""
    statements: dict[Witness, Statement] = {}
    for witness, value in said.items():
        statements[witness] = Statement(value, f"by {witness}", f"bytes of {witness}")  # type: ignore[index]
    return ContractRow(field, statements, agrees, required)


EPSILON = Finding(
    code="N201",
    name="epsilon-mismatch",
    severity="error",
    subject="decoder.self_attention.norm_in",
    message="epsilon differs in layers 0-31",
    tensors=tuple(f"model.layers.{i}.input_layernorm.weight" for i in range(32)),
    expected=1e-06,
    observed=1e-05,
    evidence="config.json: rms_norm_eps",
    help="set rms_norm_eps to the value that the weights were trained with",
    lab=(12,),
)
DTYPE = Finding("S104", "dtype-mismatch", "warning", "checkpoint", "two dtypes", expected="BF16", observed="F32")
POOLER = Finding("K102", "unexpected-key", "note", "pooler", "a part that the named class ignores", ("pooler.weight",))

ROWS = (
    row("decoder.self_attention.norm_in.family", True, declared="rmsnorm", stored="rmsnorm"),
    row("decoder.self_attention.norm_in.epsilon", False, True, declared=1e-06, stored=1e-05),
    row("decoder.self_attention.norm_in.bias", True, declared=False, stored=False),
    row("decoder.mlp.norm_in.epsilon", None, True, declared=1e-06),
    row("decoder.mlp.norm_in.placement", None),
    row("decoder.branch_order", None, declared=["causal_self_attention", "gated_mlp"]),
    row("decoder.final_norm.family", True, declared="rmsnorm", stored="rmsnorm"),
)
NOT_CHECKED = (
    "decoder.self_attention.norm_in.placement",
    "decoder.self_attention.norm_in.cast_order",
    "decoder.mlp.norm_in.placement",
    "decoder.branch_order",
)


def report(**changed: Any) -> Report:
    """A small accepted report, with any part of it changed."""
    parts: dict[str, Any] = {
        "kind": "inspection",
        "verdict": "accepted",
        "level": "headers",
        "subject": SUBJECT,
        "manifest": LLAMA,
        "contract": (),
        "findings": (),
        "not_checked": (),
        "version": "0.1.0",
    }
    return Report(**{**parts, **changed})


ACCEPTED = report(contract=ROWS[:1] + ROWS[2:3] + ROWS[4:], not_checked=NOT_CHECKED)
REJECTED = report(
    verdict="rejected",
    contract=ROWS,
    findings=(EPSILON, DTYPE, POOLER),
    not_checked=NOT_CHECKED,
    gates=({"gate": "headers", "required": True, "status": "failed", "why": "epsilon", "evidence": {}},),
)
UNKNOWN = row("decoder.mlp.norm_in.epsilon", None, True)
UNVERIFIED = report(verdict="unverified", contract=(UNKNOWN, ROWS[4]), not_checked=(UNKNOWN.field, ROWS[4].field))
