"""Config values that the target's function depends on, and that nothing supplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from blockaudit.manifest import grammar
from blockaudit.migrate.check.differences import lost
from blockaudit.migrate.check.pairs import role_of
from blockaudit.migrate.sides import Slot
from blockaudit.migrate.work import Work
from blockaudit.records.bound import Resolved
from blockaudit.records.checkpoint import Fault
from blockaudit.records.operations import Operation

# Without a source manifest to compare with: what shapes cannot show and a class default would silently replace.
_UNSEEN = (".epsilon", ".heads")
# Dimension symbols of every decoder that a config gives by themselves.
_SIZES = ("d_model", "n_layers", "n_heads", "n_kv", "d_ff", "vocab", "n_experts")


def configs(work: Work) -> Iterator[Fault]:
    """`map-config-lost`: a field whose value falls back on the target class's default, where the source says another.

    Without a manifest of the source, epsilon and the head count must be supplied: no shape gives them away. And
    `config-invalid`: a value of the target's config that is none for its key, so that nothing could be held to it.
    """
    yield from _unusable(work)
    groups: dict[tuple[str, ...], list[tuple[str, Any, Any]]] = {}
    if work.source.bound is not None:
        for found, keys in lost(work):
            groups.setdefault(keys, []).append((found.field, found.a, found.b))
    elif work.target.bound is not None:
        # A rotary base that the source's config has, and that the map neither renames nor leaves behind.
        theta = any("theta" in key and key not in work.map.config for key in work.source.config or {})
        unseen = (*_UNSEEN, ".rotary.theta") if theta else _UNSEEN
        for name, value in {**work.target.bound.fields, **work.target.bound.functions}.items():
            if name.endswith(unseen) and value.implied and not value.pinned:
                groups.setdefault(value.implied, []).append((name, None, value.value))
    for keys, fields in groups.items():
        yield _lost(keys, fields, compared=work.source.bound is not None)
    for name in sorted(_misjudged(work)):
        size = work.target.bound.dims[name] if work.target.bound is not None else None
        if size is not None and size.implied not in groups:
            groups[size.implied] = []
            yield _lost(size.implied, [(name, None, size.value)], compared=False)


def _misjudged(work: Work) -> set[str]:
    """Dimension symbols that are the target class's own default, where that is what the tensors do not fit."""
    if work.target.bound is None:
        return set()
    taken = {n: d.value for n, d in work.target.bound.dims.items() if n in _SIZES and _assumed(d)}
    # The words of a rule whose operations could not be done.
    read = {w for f in work.failed for op in work.map.rules[f.move.rule].ops for w in _symbols(op)}
    return (read & taken.keys()) | {n for n, value in taken.items() if value in _unmet(work)}


def _assumed(size: Resolved) -> bool:
    return size.known and bool(size.implied) and not size.pinned and isinstance(size.value, int)


def _unmet(work: Work) -> set[int]:
    """What the target expects along an axis, as heads of k and v, or as layers of a stack, and nothing gives."""
    slots = work.target.slots
    found: set[int] = set()
    for key, given in work.target.types.items():
        wanted = slots[key].expected.shape if key in slots else ()
        if len(wanted) == len(given.shape):
            sizes = {w for w, n in zip(wanted, given.shape, strict=True) if w is not None and w != n}
            found |= sizes | (_kv_heads(work, slots[key]) if sizes else set())
    depth = 1 + max((s.layer for s in slots.values() if s.layer is not None), default=-1)
    fed = 1 + max((s.layer for k, s in slots.items() if s.layer is not None and k in work.fed), default=-1)
    return found | ({depth} if fed < depth else set())


def _kv_heads(work: Work, slot: Slot) -> set[int]:
    count = work.target.function(f"{slot.expected.owner}.kv_heads") if role_of(slot) in ("k", "v") else None
    return {count} if isinstance(count, int) else set()


def _symbols(op: Operation) -> Iterator[str]:
    """Dimension symbols that an operation's sizes are worked out from."""
    for value in structs.asdict(op).values():
        for text in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
            if isinstance(text, str):
                with suppress(grammar.ExpressionError):
                    yield from grammar.symbols(text)


def _unusable(work: Work) -> Iterator[Fault]:
    """Counts and sizes that are no whole numbers, an epsilon that is no number, in the target's config."""
    if work.target.bound is None or work.target.config is None:
        return
    for fault in work.target.bound.problems:
        yield replace(fault, file="config", message=f"the target's config: {fault.message}")
    wrong = {v.keys[0]: v.value for n, v in work.target.bound.fields.items() if n.endswith(".epsilon") and _odd(v)}
    for key, value in wrong.items():
        message = f"the target's config: {key} gives {value!r}, which is no epsilon"
        expected = "a number that is not negative"
        yield Fault("config-invalid", "config", message, (), expected, value, f"config.{key}")


def _odd(found: Resolved) -> bool:
    """Whether config.json gives an epsilon that is no number from 0 on. One that is not there is told by itself."""
    value = found.value
    if not (found.known and found.keys) or value is None:
        return False
    return isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0


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
