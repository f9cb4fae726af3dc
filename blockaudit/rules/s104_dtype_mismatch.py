"""The stored dtype is not the one that config.json names.

What it means:
    Most of the floating-point bytes are of another dtype than dtype (or torch_dtype).

Why it matters:
    Loaders that follow config.json cast on load: precision or memory is not what was meant.

Example:
    dtype is bfloat16 and 90 % of the bytes are float32.

What to do:
    Set dtype in config.json to what is stored, or store what it says.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.checkpoint import DTYPE_BITS
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "S104",
    "dtype-mismatch",
    "set dtype in config.json to what is stored, or store what it says",
    severity="warning",
)

_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "half": "F16", "float": "F32"}


def check(audit: Audit) -> Iterator[Finding]:
    """The dtype of most floating-point bytes against config.json."""
    config = audit.config or {}
    named = config.get("dtype", config.get("torch_dtype"))
    declared = _NAMES.get(named.removeprefix("torch.")) if isinstance(named, str) else None
    if declared is None or "quantization_config" in config:
        return
    sizes: dict[str, int] = {}
    for header in audit.checkpoint.tensors.values():
        if header.dtype in _NAMES.values():
            sizes[header.dtype] = sizes.get(header.dtype, 0) + header.nbytes
    most = max(sizes, key=lambda d: sizes[d], default=declared)
    if most != declared:
        elements = sum(sizes[d] * 8 // DTYPE_BITS[d] for d in sizes)
        yield RULE.finding(
            "config.json: dtype",
            f"config names {named}; {sizes[most]:,} of {sum(sizes.values()):,} bytes are {most} "
            f"({elements * DTYPE_BITS[declared] // 8:,} bytes as {declared})",
            expected=declared,
            observed=most,
            evidence="tensor headers",
        )
