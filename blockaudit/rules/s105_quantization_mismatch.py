"""Quantised weights, their scales and the declared scheme do not go together.

What it means:
    A part of a scheme is missing, left over or of another shape than the weight's own shape, the group size or the
    blocks demand; or config.json declares no scheme, another one, other bits, or leaves out what is quantised.

Why it matters:
    Without its scale a quantised weight is noise; an undeclared scheme is loaded as if it were plain numbers; a wrong
    group size multiplies every number by its neighbour's scale.

Example:
    model.layers.0.mlp.up_proj.weight is F8_E4M3 and has no weight_scale_inv; config declares groups of 128 and the
    scales are for groups of 64.

What to do:
    Store the scales with the weights, and declare the scheme in quantization_config.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.quantised import Misfit, Quantised
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "S105",
    "quantization-mismatch",
    "store the scales with the weights, and declare the scheme in quantization_config",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Parts of a scheme that do not fit each other or config.json, and schemes that are not declared."""
    found = audit.reconciled.binding.quantised if audit.reconciled else audit.quantised
    if found is None:
        return
    groups: dict[str, list[Misfit]] = {}
    for misfit in found.misfits:
        # The other half of a pair may lie in a file that could not be read.
        if misfit.have is not None or audit.files_known:
            groups.setdefault(misfit.problem, []).append(misfit)
    for problem, misfits in groups.items():
        first = misfits[0]
        yield RULE.finding(
            found.scheme,
            f"{len(misfits)} {problem}",
            tensors=[m.key for m in misfits],
            expected=first.need,
            observed=first.have,
            evidence=first.evidence,
        )
    yield from _undeclared(audit, found)


def _undeclared(audit: Audit, found: Quantised) -> Iterator[Finding]:
    """A scheme without a declaration, a declaration without its scheme, and a method that is not read here."""
    where = f"config.json: quantization_config; {found.detected_from or 'tensor headers'}"
    if not found.known:
        said = found.declared_method
        yield RULE.finding(
            said or "quantization_config",
            f"config.json declares quant_method {said}, which is none that blockaudit reads"
            if said
            else "quantization_config names no quant_method",
            expected=None,
            observed=said or None,
            evidence=where,
            help="audit the checkpoint before it was quantised, or dequantise it first"
            if said
            else "name the scheme in quantization_config.quant_method",
        )
    elif found.undeclared or (found.scheme == "none" and found.declared and audit.keys_known):
        stored = ", ".join(found.undeclared) or "none"
        yield RULE.finding(
            found.scheme,
            f"the tensors show {stored} and config.json declares {found.declared_method or 'no scheme'}",
            expected=found.declared_method or None,
            observed=stored,
            evidence=where,
        )
