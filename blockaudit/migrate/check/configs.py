"""Config values that the target's function depends on, and that nothing supplies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blockaudit.migrate.check.differences import lost
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault

# Without a source manifest to compare with: what shapes cannot show and a class default would silently replace.
_UNSEEN = (".epsilon", ".heads")


def configs(work: Work) -> Iterator[Fault]:
    """`map-config-lost`: a field whose value falls back on the target class's default, where the source says another.

    Without a manifest of the source, epsilon and the head count must be supplied: no shape gives them away.
    """
    groups: dict[tuple[str, ...], list[tuple[str, Any, Any]]] = {}
    if work.source.bound is not None:
        for found, keys in lost(work):
            groups.setdefault(keys, []).append((found.field, found.a, found.b))
    elif work.target.bound is not None:
        for name, value in {**work.target.bound.fields, **work.target.bound.functions}.items():
            if name.endswith(_UNSEEN) and value.implied and not value.pinned:
                groups.setdefault(value.implied, []).append((name, None, value.value))
    for keys, fields in groups.items():
        yield _lost(keys, fields, compared=work.source.bound is not None)


def _lost(keys: tuple[str, ...], fields: list[tuple[str, Any, Any]], *, compared: bool) -> Fault:
    name, source, implied = fields[0]
    said = f"{name} is {source!r} in the source" if compared else f"{name} needs it, and no shape shows it"
    more = f" (and {len(fields) - 1} more fields)" if len(fields) > 1 else ""
    return Fault(
        "map-config-lost",
        f"config.{keys[0]}",
        f"nothing supplies {' or '.join(keys)}: {said}{more}, and the target's class would take {implied!r}",
        expected=source if compared else None,
        observed=implied,
        evidence=f"target config.json: {', '.join(keys)} absent",
    )
