"""A buffer that code derives holds something else than the code would compute.

What it means:
    Its shape, or (for rotary frequencies) its first or last entry, is not the derived one.

Why it matters:
    Some loaders copy stored buffers over the computed ones: positions are then encoded wrongly.

Example:
    rotary_emb.inv_freq begins with 0.0 after a load on the meta device; it begins with 1.0.
    It ends with what another rope_theta gives: config.json is not the one that the weights were trained under.

What to do:
    Remove the buffer, which the code computes; where it ends otherwise, correct rope_theta in config.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from blockaudit.checkpoint.values import read_vector
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K112",
    "derived-buffer-mismatch",
    "remove the buffer, which the code computes; where it ends otherwise, correct rope_theta in config.json",
    severity="warning",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Derived buffers of another shape, or with other rotary frequencies than config.json gives."""
    if audit.reconciled is None:
        return
    for t in audit.reconciled.binding.templates:
        if not (t.expected.derived and t.found):
            continue
        if t.misshapen:
            yield RULE.finding(
                t.expected.template,
                f"{len(t.misshapen)} derived buffers of another shape",
                tensors=tuple(m.key for m in t.misshapen),
                expected=list(t.misshapen[0].expected),
                observed=list(t.misshapen[0].found),
                evidence="tensor headers",
            )
        elif t.expected.role == "inv_freq" and t.example is not None:
            yield from _frequencies(audit, t.expected.template, t.example, audit.reconciled.binding.stored(t.example))


def _frequencies(audit: Audit, template: str, key: str, stored: str) -> Iterator[Finding]:
    """Rotary frequencies fall from one to the value that config.json's base gives."""
    stats = read_vector(audit.checkpoint, stored)
    if stats is None:
        return
    ends = [("largest", stats.maximum, 1.0, 1e-3)]
    lowest = _lowest(audit.config or {}, stats.count)
    if lowest is not None:
        # float16 stores numbers as small as these in steps of 6e-8.
        ends.append(("smallest", stats.minimum, lowest, 0.05 * lowest + 2e-7))
    for end, found, expected, tolerance in ends:
        if not abs(found - expected) <= tolerance:
            yield RULE.finding(
                template,
                f"the {end} rotary frequency is {found:.6g}",
                tensors=(key,),
                expected=expected,
                observed=found,
                evidence=key,
            )
            return


def _lowest(config: Mapping[str, Any], count: int) -> float | None:
    """The smallest of `count` frequencies, where config.json gives a base and does not scale it."""
    rope = config.get("rope_parameters")
    rope = cast("dict[str, Any]", rope) if isinstance(rope, dict) else {"rope_theta": config.get("rope_theta")}
    base = rope.get("rope_theta")
    if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        return None
    return base ** ((1 - count) / count) if isinstance(base, int | float) and 1 < base < 1e12 else None
