"""A dimension of config.json is not the one that the tensors have.

What it means:
    Hidden size, heads, key/value heads, head size, feed-forward size or experts, solved from the shapes, differ
    from config.json.

Why it matters:
    A loader fails or, where products agree by chance, reshapes heads wrongly without an error.

Example:
    num_key_value_heads is 4 and k_proj has rows for 2.

What to do:
    Correct the field of config.json to what the tensors have.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, shown

RULE = Rule(
    "C105",
    "config-tensor-mismatch",
    "correct the field of config.json to what the tensors have",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Wrong dimensions that explain the shapes."""
    for d in audit.reconciled.shapes.dimensions if audit.reconciled else ():
        if d.symbol != "vocab":
            others = ", ".join(f"{s} = {v}" for s, v in d.alternatives)
            yield RULE.finding(
                f"dims.{d.symbol}",
                f"{d.symbol} is {shown(d.declared)} by {d.source} and {d.found} by {len(d.tensors)} tensors"
                + (f" (headers cannot tell it from {others})" if others else ""),
                tensors=d.tensors,
                expected=d.declared,
                observed=d.found,
                evidence=f"{d.source}; {', '.join(d.templates[:3])}",
            )
    yield from _counts(audit)


def _counts(audit: Audit) -> Iterator[Finding]:
    """Counts that keys give and no shape explains (experts)."""
    if audit.reconciled is None or not audit.keys_known:
        return
    explained = {f"dims.{d.symbol}" for d in audit.reconciled.shapes.dimensions}
    for row in audit.reconciled.rows:
        name = row.field.removeprefix("dims.")
        if (
            row.agrees is False
            and row.field not in explained
            and name in audit.reconciled.declared.manifest.axes.values()
        ):
            declared, stored = row.statements["declared"], row.statements["stored"]
            if isinstance(stored.value, int) and stored.value > 0:
                yield RULE.finding(
                    row.field,
                    f"{name} is {shown(declared.value)} by config and {stored.value} by the keys",
                    expected=declared.value,
                    observed=stored.value,
                    evidence=f"{declared.evidence}; {stored.evidence}",
                )
