"""What tells apart the functions that two manifests declare of their branches, embeddings and heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from blockaudit.records.bound import Resolved

# Numbers that config.json gives: another one is the same function of other dimensions.
SIZES = frozenset({
    "heads", "kv_heads", "head_dim", "value_dim", "nope_dim", "rope_dim", "dim", "theta", "window",
    "max_length", "original_length", "max_distance", "top_k", "groups", "top_groups",
})  # fmt: skip
# The field that says that an owner's function is declared at all.
_DECLARES = (".heads", ".activation", ".inputs.positions")

Functions = Mapping[str, Resolved]
# A field, both values, both Resolved where there are two, and whether it is a size.
Row = tuple[str, Any, Any, bool]


def differing(one: Functions, two: Functions, depths: Mapping[str, int]) -> Iterator[Row]:
    """Fields whose values differ, of owners that both manifests declare: a draft says nothing, and claims nothing.

    `depths`: layers that both have, by stack. Which layers have a window is compared among those.
    """
    owners = _owners(one) & _owners(two)
    seen: set[str] = set()
    for field in dict.fromkeys([*one, *two]):
        owner = max((o for o in owners if field.startswith(f"{o}.")), key=len, default=None)
        if owner is None:
            continue
        group = _group(owner, field)
        a, b = _has(one, group), _has(two, group)
        if group != field and a != b:
            # All of it, once: rotary positions on one side, and none on the other.
            if group not in seen:
                yield group, a or None, b or None, False
            seen.add(group)
            continue
        mine, theirs = one.get(field), two.get(field)
        if field.endswith(".window_layers"):
            mine, theirs = (_windowed(f, field, depths.get(field.partition(".")[0], 0)) for f in (one, two))
            if mine is None or theirs is None:
                continue  # a window that one does not have is told by its size
        if field == f"{owner}.scale":
            mine, theirs = _of_scores(one, owner), _of_scores(two, owner)
        if not all(r is None or r.known for r in (mine, theirs)) or _value(mine) == _value(theirs):
            continue
        sized = field.rpartition(".")[2] in SIZES and not (_fixed(mine) and _fixed(theirs))
        yield field, _value(mine), _value(theirs), sized


def _owners(functions: Functions) -> set[str]:
    return {f.removesuffix(end) for f in functions for end in _DECLARES if f.endswith(end)}


def _group(owner: str, field: str) -> str:
    """`decoder.self_attention.rotary` of `decoder.self_attention.rotary.theta`; a field without a group is its own."""
    first, dot, _ = field.removeprefix(f"{owner}.").partition(".")
    return f"{owner}.{first}" if dot else field


def _has(functions: Functions, group: str) -> bool:
    return any(f == group or f.startswith(f"{group}.") for f in functions)


def _windowed(functions: Functions, field: str, depth: int) -> Resolved | None:
    """The layers with a window, among the first `depth`; None where no layer has one."""
    window, layers = functions.get(field.removesuffix("_layers")), functions.get(field)
    if layers is None or window is None or window.value is None:
        return None
    return replace(layers, value=[n for n in layers.value if n < depth])


def _of_scores(functions: Functions, owner: str) -> Resolved | None:
    """The factor of the scores over head_dim^(-1/2), which it is where it is not given."""
    scale, width = functions.get(f"{owner}.scale"), functions.get(f"{owner}.head_dim")
    if scale is None or width is None or not (scale.known and isinstance(width.value, int)):
        return scale
    over = 1.0 if scale.value is None else round(scale.value * width.value**0.5, 9)
    return replace(scale, value=over)


def _value(resolved: Resolved | None) -> Any:
    return None if resolved is None else resolved.value


def _fixed(resolved: Resolved | None) -> bool:
    """Whether the manifest holds the value itself, and one that is no absence."""
    return resolved is not None and resolved.value is not None and (resolved.pinned or not resolved.keys)
