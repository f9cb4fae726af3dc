"""config.json cannot be read, or a field of it cannot be what it says.

What it means:
    It is not a JSON object, or a field has a value that no model can have.

Why it matters:
    The loader fails or falls back to a default of its code.

Example:
    hidden_size is a string, or negative.

What to do:
    Correct the field in config.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from blockaudit.manifest.values import lookup
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "C102",
    "config-invalid",
    "correct the field in config.json",
)

_TYPES = {
    ".epsilon": "a number that is not negative",
    "_scale": "a number",
    ".scale_offset": "a number",
    "embedding.scale": "a number",
    "logits.scale": "a number",
    ".parallel": "true or false",
    ".bias": "true or false",
}


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of the file, then of its fields."""
    yield from from_faults(RULE, audit)
    for fault in audit.reconciled.declared.problems if audit.reconciled else ():
        yield RULE.finding(
            fault.evidence or fault.file,
            fault.message,
            expected=fault.expected,
            observed=fault.observed,
            evidence=f"config.json: {fault.evidence}",
        )
    yield from _wrong_types(audit)


def _wrong_types(audit: Audit) -> Iterator[Finding]:
    """Epsilons and factors that are not numbers, flags that are neither true nor false."""
    groups: dict[str, list[str]] = {}
    found: dict[str, tuple[str, object]] = {}
    for field, value in audit.reconciled.declared.fields.items() if audit.reconciled else ():
        wanted = next((what for end, what in _TYPES.items() if field.endswith(end)), None)
        if wanted is None or not value.known or not value.keys:
            continue
        if field.endswith(".epsilon") and lookup(audit.config or {}, value.keys[0]) is None:
            # The class that reads an explicit null raises: its default is not what acts.
            groups.setdefault(value.keys[0], []).append(field)
            found[value.keys[0]] = wanted, None
        if value.value is None:
            continue
        number = isinstance(value.value, int | float) and not isinstance(value.value, bool)
        fine = number and abs(value.value) <= sys.float_info.max and (wanted != _TYPES[".epsilon"] or value.value >= 0)
        if not (isinstance(value.value, bool) if wanted == "true or false" else fine):
            groups.setdefault(value.keys[0], []).append(field)
            found[value.keys[0]] = wanted, value.value
    for key, fields in groups.items():
        wanted, value = found[key]
        yield RULE.finding(
            key,
            f"{key} is {value!r}: {', '.join(fields[:3])} must be {wanted}",
            expected=wanted,
            observed=value,
            evidence=f"config.json: {key}",
        )
