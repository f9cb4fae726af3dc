"""Shapes after all operations, held to those that the target's manifest expects under the target's config."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.migrate.work import Work
from blockaudit.reconcile.expand import templates_of
from blockaudit.records.checkpoint import Fault


def shapes(work: Work) -> Iterator[Fault]:
    """`map-shape-mismatch`, and `map-undeclared-transpose` where the same numbers stand in the other order."""
    wrong = [key for key in work.target.types if not _fits(work, key)]
    for template, keys in templates_of(wrong):
        key = keys[0]
        found = work.target.types[key].shape
        wanted = work.target.slots[key].expected.shape
        turned = len(found) == 2 and tuple(reversed(found)) == wanted
        rule = work.fed[key][0]
        yield Fault(
            "map-undeclared-transpose" if turned else "map-shape-mismatch",
            template,
            f"rule {rule} gives {template} the shape {list(found)}, and the target expects {list(wanted)}"
            + (': add {"op": "transpose"}' if turned else ""),
            tuple(keys),
            expected=list(wanted),
            observed=list(found),
            evidence=f"rules[{rule}]",
        )


def _fits(work: Work, key: str) -> bool:
    slot = work.target.slots.get(key)
    if slot is None:
        return True  # that there is no such key is told by itself
    found, wanted = work.target.types[key].shape, slot.expected.shape
    return len(found) == len(wanted) and all(w in (None, f) for f, w in zip(found, wanted, strict=True))
