"""Rows of projections: q, k and v or gate and up in one tensor or apart, and the pairing of rotary coordinates."""

from __future__ import annotations

from typing import Any, Literal, cast

from blockaudit.migrate.draft.ends import Ends
from blockaudit.migrate.draft.pairs import FUSED, Pair
from blockaudit.migrate.draft.undecidable import Undecidable
from blockaudit.records.operations import Concat, HeadLayout, Operation, Pairing, PermuteRope, Split

_LAYOUTS = ("qkv", "per_head", "per_group")
_QKV, _GATED = FUSED["qkv"], FUSED["gate_up"]


def between_layouts(pair: Pair, ends: Ends, dim: int) -> list[Operation]:
    """Operations on rows, which lie along axis `dim` of [out, in]. Raises Undecidable."""
    roles = {piece.place.role for piece in (*pair.sources, *pair.targets)}
    if pair.targets[0].place.what == "norm":
        return _turned_gain(pair, ends)
    if "qkv" in roles:
        return _attention(pair, ends, dim)
    if "gate_up" in roles:
        return _gated(pair, ends, dim)
    role = pair.targets[0].place.role
    turned = _turned(pair, ends, dim, role) if role in ("q", "k") else None
    return [] if turned is None else [turned]


def _attention(pair: Pair, ends: Ends, dim: int) -> list[Operation]:
    """From the layout of the source, if it fuses, to that of the target, if it does; q and k turned in between."""
    owner = pair.targets[0].expected.owner
    mine, theirs = ends.said(f"{owner}.fused")
    apart, whole = len(pair.targets) > 1, len(pair.sources) == 1
    permutes = [_turned(pair, ends, dim, role, at) for at, role in enumerate(_QKV[:2])]
    ops: list[Operation] = [op for op in permutes if op is not None]
    if whole and not apart and mine == theirs and not ops:
        if mine not in _LAYOUTS:
            raise Undecidable("q, k and v lie in one tensor on both sides, and no manifest says how")
        return []
    heads = _heads(owner, ends)
    if whole:
        ops.insert(0, Split(dim=dim, layout=_layout(mine, "source"), heads=heads["q"], kv_heads=heads["k"]))
    if not apart:
        ops.append(Concat(dim=dim, layout=_layout(theirs, "target"), heads=heads["q"], kv_heads=heads["k"]))
    return ops


def _layout(said: Any, side: str) -> HeadLayout:
    if said not in _LAYOUTS:
        raise Undecidable(f"q, k and v lie in one tensor, and the {side}'s manifest does not say how (qkv, per_head, "
                          "per_group)")  # fmt: skip
    return said


def _gated(pair: Pair, ends: Ends, dim: int) -> list[Operation]:
    """Gate and up of equal size, in the order that the manifest of the side that fuses them gives. `to` follows it."""
    mine, theirs = ends.said(f"{pair.targets[0].expected.owner}.fused")
    apart, whole = len(pair.targets) > 1, len(pair.sources) == 1
    if whole and not apart:
        if mine != theirs or mine is None:
            raise Undecidable(
                f"the source fuses gate and up as {mine}, the target as {theirs}: no operation reorders them"
            )
        return []
    order(mine if whole else theirs, "source" if whole else "target")
    return [Split(dim=dim) if whole else Concat(dim=dim)]


def order(said: Any, side: str) -> tuple[str, ...]:
    """The roles of a fused gate and up in the order of their rows. Raises Undecidable."""
    if said not in ("gate_up", "up_gate"):
        raise Undecidable(f"gate and up lie in one tensor, and the {side}'s manifest says {said} of their order")
    return _GATED if said == "gate_up" else _GATED[::-1]


def _heads(owner: str, ends: Ends) -> dict[str, int | str]:
    """How many heads q and k have, in the target's words. Raises Undecidable."""
    found: dict[str, int | str] = {}
    for role, name in (("q", "heads"), ("k", "kv_heads")):
        mine, theirs = ends.said(f"{owner}.{name}")
        if not isinstance(theirs, int) or mine != theirs:
            raise Undecidable(f"the source has {mine} {name}, the target {theirs}: rows cannot be told apart by heads")
        found[role] = ends.spelt(owner, name, theirs)
    return found


def _turned(pair: Pair, ends: Ends, dim: int, role: str, at: int | None = None) -> PermuteRope | None:
    """The permutation of q's or k's rows where the pairings differ. Raises Undecidable."""
    owner = pair.targets[0].expected.owner
    ends_of = _pairings(owner, ends)
    if ends_of is None:
        return None
    if any(ends.said(f"{owner}.latent.rope_dim")):
        raise Undecidable("pairings differ, and which rows of a latent projection turn is no matter of heads alone")
    return PermuteRope(heads=_heads(owner, ends)[role], from_=ends_of[0], to=ends_of[1], dim=dim, at=at,
                       rotary_dim=_rotary_dim(owner, ends))  # fmt: skip


def _pairings(owner: str, ends: Ends) -> tuple[Pairing, Pairing] | None:
    """From which pairing to which; None where they are one, or where a side has none."""
    mine, theirs = ends.said(f"{owner}.rotary.pairing")
    window = ends.said(f"{owner}.window_rotary.pairing")
    if window != (None, None) and window != (mine, theirs):
        raise Undecidable(f"layers of a window pair rotary coordinates otherwise ({window[0]} to {window[1]})")
    if mine is None or theirs is None or mine == theirs:
        return None
    return cast("Literal['half', 'interleaved']", mine), cast("Literal['half', 'interleaved']", theirs)


def _rotary_dim(owner: str, ends: Ends) -> int | None:
    """Rows of a head that turn, where they are not all. Raises Undecidable."""
    size, (mine, theirs) = ends.said(f"{owner}.head_dim")[1], ends.said(f"{owner}.rotary.dim")
    turns = [size if dim is None else dim for dim in (mine, theirs)]
    if turns[0] != turns[1] or not isinstance(turns[0], int):
        raise Undecidable(f"{turns[0]} rows of a head turn in the source and {turns[1]} in the target")
    return None if turns[0] == size else turns[0]


def _turned_gain(pair: Pair, ends: Ends) -> list[Operation]:
    """A gain of q's or k's coordinates follows its projection's rows where they are permuted. Raises Undecidable."""
    target = pair.targets[0].expected
    owner, _, role = target.owner.rpartition(".inner.")
    if role not in ("q", "k") or _pairings(owner, ends) is None:
        return []
    size, heads = ends.said(f"{owner}.head_dim")[1], _heads(owner, ends)[role]
    count = ends.said(f"{owner}.{'heads' if role == 'q' else 'kv_heads'}")[1]
    if target.shape == (size,):
        return [_gain(1, 0, owner, ends)]
    if target.shape == (count, size):
        return [_gain(1, 1, owner, ends)]
    if target.shape != (count * size,):
        raise Undecidable(f"pairings differ, and a gain of shape {list(target.shape)} is not one of heads")
    return [_gain(heads, 0, owner, ends)]


def _gain(heads: int | str, dim: int, owner: str, ends: Ends) -> PermuteRope:
    pairings = _pairings(owner, ends)
    assert pairings is not None
    return PermuteRope(heads=heads, from_=pairings[0], to=pairings[1], dim=dim, rotary_dim=_rotary_dim(owner, ends))
