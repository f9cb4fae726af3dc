"""Which pieces of the source become which pieces of the target: by place and layer, never by a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from blockaudit.migrate.draft.pieces import Piece, Place
from blockaudit.migrate.draft.records import Undecided

# A fused tensor and its parts. Its rows lie as the manifest's `fused` says.
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


class Pair(msgspec.Struct, frozen=True):
    """Pieces of the source that make pieces of the target, in these layers (None: in none of a stack's)."""

    sources: tuple[Piece, ...]
    targets: tuple[Piece, ...]
    layers: tuple[int, ...] | None


class Paired(msgspec.Struct, frozen=True):
    """All pairs, and what found no counterpart. `left` are of the source, `unfed` of the target."""

    pairs: tuple[Pair, ...]
    left: tuple[Piece, ...]
    unfed: tuple[Piece, ...]
    undecided: tuple[Undecided, ...]


def pair(sources: Sequence[Piece], targets: Sequence[Piece]) -> Paired:
    """Lay two sides beside each other. `sources` are the pieces that the source has, `targets` all of the target's."""
    found: list[Pair] = []
    for target in targets:
        # A second name of what stands in the same place is fed by its alias.
        if not (target.tied and _at(targets, target.place)):
            found += [one for one in _for(target, targets, sources) if one not in found]
    twice = _twice(found)
    sure = [one for one in found if not _marks(one.sources + one.targets, one.layers) & twice]
    fed = {mark for one in sure for mark in _marks(one.targets, one.layers)}
    taken = {mark for one in sure for mark in _marks(one.sources, one.layers)}
    return Paired(
        tuple(sure),
        tuple(s for s in sources if _marks((s,), s.layers) - taken),
        tuple(t for t in targets if _marks((t,), t.layers) - fed),
        tuple(_ambiguous(one) for one in found if one not in sure),
    )


_Mark = tuple[int, int | None]


def _marks(pieces: Sequence[Piece], layers: tuple[int, ...] | None) -> set[_Mark]:
    """A piece in one layer, for each of them."""
    return {(id(p), n) for p in pieces for n in (layers if layers is not None else (None,))}


def _twice(found: Iterable[Pair]) -> set[_Mark]:
    """Pieces that more than one pair would take or feed in one layer."""
    counted = Counter(mark for one in found for mark in _marks(one.sources + one.targets, one.layers))
    return {mark for mark, count in counted.items() if count > 1}


def _ambiguous(one: Pair) -> Undecided:
    names = ", ".join(s.expected.template for s in one.sources)
    return Undecided(
        one.targets[0].expected.template,
        f"several tensors of the manifests stand in one place ({one.targets[0].expected.owner}, "
        f"{one.targets[0].expected.role}): {names} is one that may go there",
    )


def _for(target: Piece, targets: Sequence[Piece], sources: Sequence[Piece]) -> Iterator[Pair]:
    """Pairs that feed a piece: of one role, out of a fused tensor, or into one."""
    own = _at(sources, target.place)
    if own:
        yield from (Pair((s,), (target,), layers) for s in own for layers in _shared((s, target)))
        return
    for fused, parts in FUSED.items():
        if target.place.role in parts:
            whole = _at(sources, msgspec.structs.replace(target.place, role=fused))
            others = [_at(targets, msgspec.structs.replace(target.place, role=part)) for part in parts]
            yield from _combined([whole], others)
        elif target.place.role == fused:
            apart = [_at(sources, msgspec.structs.replace(target.place, role=part)) for part in parts]
            yield from _combined(apart, [[target]])


def _at(pieces: Iterable[Piece], place: Place) -> list[Piece]:
    return [p for p in pieces if p.place == place and not p.tied]


def _combined(sources: list[list[Piece]], targets: list[list[Piece]]) -> Iterator[Pair]:
    """Pairs of one piece for each role, wherever all of them stand in one layer."""
    sides = [*sources, *targets]
    if not all(sides):
        return
    for layers, chosen in _by_layers(sides):
        yield Pair(chosen[: len(sources)], chosen[len(sources) :], layers)


def _by_layers(sides: list[list[Piece]]) -> Iterator[tuple[tuple[int, ...] | None, tuple[Piece, ...]]]:
    """The pieces, one of each side, that stand together, with their layers."""
    combinations: list[tuple[Piece, ...]] = [()]
    for side in sides:
        combinations = [(*c, p) for c in combinations for p in side]
    for chosen in combinations:
        for layers in _shared(chosen):
            yield layers, chosen


def _shared(chosen: Sequence[Piece]) -> Iterator[tuple[int, ...] | None]:
    """The layers that all have; nothing where they have none in common, or where only some stand in layers."""
    kinds = {p.layers is None for p in chosen}
    if kinds == {True}:
        yield None
    elif kinds == {False}:
        common = set[int].intersection(*(set(p.layers or ()) for p in chosen))
        if common:
            yield tuple(sorted(common))
