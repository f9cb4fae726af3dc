"""Quantised weights, their scales and the declared scheme do not go together.

What it means:
    A weight has no scale, a scale has no weight, a scale has the wrong shape, or a scheme is used that
    config.json does not declare.

Why it matters:
    Without its scale a quantised weight is noise; an undeclared scheme is loaded as if it were plain numbers.

Example:
    model.layers.0.mlp.up_proj.weight is F8_E4M3 and has no weight_scale_inv.

What to do:
    Store the scales with the weights, and declare the scheme in quantization_config.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "S105",
    "quantization-mismatch",
    "store the scales with the weights, and declare the scheme in quantization_config",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Pairs of weights and scales that are not whole, and schemes that are not declared."""
    found = audit.reconciled.binding.quantised if audit.reconciled else None
    if found is None:
        return
    faults = (
        (found.without_scale, "quantised weights without a scale", "one scale per quantised weight", "none"),
        (found.orphan_scale, "scales without a quantised weight", "a quantised weight beside every scale", "none"),
    )
    for keys, what, expected, observed in faults:
        # The other half of a pair may lie in a file that could not be read.
        if keys and audit.files_known:
            yield RULE.finding(
                found.scheme,
                f"{len(keys)} {what}",
                tensors=keys,
                expected=expected,
                observed=observed,
                evidence=found.detected_from,
            )
    if found.bad_scale:
        first = found.bad_scale[0]
        yield RULE.finding(
            found.scheme,
            f"{len(found.bad_scale)} block scales of the wrong shape",
            tensors=[m.key for m in found.bad_scale],
            expected=list(first.expected),
            observed=list(first.found),
            evidence="config.json: quantization_config.weight_block_size",
        )
    undeclared = found.scheme != "none" and not found.declared
    if undeclared or (found.scheme == "none" and found.declared and audit.keys_known):
        yield RULE.finding(
            found.scheme,
            f"the tensors show {found.scheme} and config.json declares {found.declared_method or 'no scheme'}",
            expected=found.declared_method or None,
            observed=found.scheme,
            evidence=f"config.json: quantization_config; {found.detected_from or 'tensor headers'}",
        )
