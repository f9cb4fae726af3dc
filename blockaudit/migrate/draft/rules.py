"""Pairs as rules of a map; ties as aliases; buffers that a target derives as drops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from blockaudit.migrate import templates
from blockaudit.migrate.draft.ends import Ends
from blockaudit.migrate.draft.fused import order
from blockaudit.migrate.draft.operations import operations
from blockaudit.migrate.draft.pairs import FUSED, Pair
from blockaudit.migrate.draft.pieces import Piece
from blockaudit.migrate.draft.records import Undecided
from blockaudit.migrate.draft.undecidable import Undecidable
from blockaudit.records.migration import Drop, MoveRule


def rules(pairs: Iterable[Pair], ends: Ends) -> tuple[list[MoveRule], list[Undecided]]:
    """The rules of all pairs, in the order of the target's manifest; a pair that nothing decides has none."""
    found: list[MoveRule] = []
    undecided: list[Undecided] = []
    for one in pairs:
        try:
            found += _rules(_ordered(one, ends), ends)
        except Undecidable as error:
            sources = tuple(source.expected.template for source in one.sources)
            undecided += [Undecided(target.expected.template, str(error), sources) for target in one.targets]
    return found, undecided


def _ordered(pair: Pair, ends: Ends) -> Pair:
    """Gate and up in the order of the rows of the tensor that holds both."""
    many = pair.sources if len(pair.sources) > 1 else pair.targets
    if len(many) != len(FUSED["gate_up"]):
        return pair
    mine, theirs = ends.said(f"{pair.targets[0].expected.owner}.fused")
    roles = order(theirs, "target") if many is pair.sources else order(mine, "source")
    by_role = {piece.place.role: piece for piece in many}
    sorted_ = tuple(by_role[role] for role in roles)
    name = "sources" if many is pair.sources else "targets"
    return msgspec.structs.replace(pair, **{name: sorted_})


def _rules(pair: Pair, ends: Ends) -> Iterator[MoveRule]:
    """One rule for all layers; one for each layer where a template would also take keys of other layers."""
    ops = operations(pair, ends)
    optional = any(s.expected.optional or s.expected.tied_to is not None for s in pair.sources)
    if pair.layers is None or all(_covers(piece, pair.layers, ends) for piece in pair.sources):
        names = [[_spelt(piece, pair) for piece in side] for side in (pair.sources, pair.targets)]
        yield MoveRule(from_=_one(names[0]), to=_one(names[1]), ops=ops, optional=optional)
        return
    for layer in pair.layers:
        sides = [[_axes(piece.at(layer), piece, pair) for piece in side] for side in (pair.sources, pair.targets)]
        yield MoveRule(from_=_one(sides[0]), to=_one(sides[1]), ops=ops, optional=optional)


def _one(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else names


def _covers(piece: Piece, layers: Sequence[int], ends: Ends) -> bool:
    """Whether the keys that a template matches in the source are those of these layers."""
    template = piece.expected.template if not ends.ranks else f"{{r}}/{piece.expected.template}"
    found = {dict(binding).get("l") for binding in templates.matches(template, ends.types)}
    return not found or found == {n + piece.shift for n in layers}


def _spelt(piece: Piece, pair: Pair) -> str:
    """The template of a piece with one number for a layer on both sides: `{l+2}` where keys count two ahead."""
    ahead = piece.shift - min(pair.sources[0].shift, pair.targets[0].shift)
    text = _axes(piece.text, piece, pair)
    return text.replace("{l}", f"{{l+{ahead}}}") if ahead else text


def _axes(text: str, piece: Piece, pair: Pair) -> str:
    """The template with the target's names of the axes that both sides have."""
    target = pair.targets[0]
    if piece in pair.sources and len(piece.axes) == len(target.axes):
        for old, new in zip(piece.axes, target.axes, strict=True):
            text = text.replace(f"{{{old}}}", f"{{{new}}}")
    return text


def aliases(sources: Iterable[Piece], targets: Iterable[Piece]) -> list[tuple[str, str]]:
    """Ties of the target, and those of the source, whose second copy is compared where it is stored."""
    found: dict[str, str] = {}
    for piece in (*targets, *sources):
        if piece.expected.tied_to is not None:
            found.setdefault(piece.text, piece.expected.tied_to)
    return list(found.items())


def drops(ends: Ends, prefix: str) -> list[Drop]:
    """Buffers that the source stores and that its manifest says are derived."""
    ranked = "{r}/" if ends.ranks else ""
    found: list[Drop] = []
    for tensor in ends.source.expected:
        key = prefix + tensor.template
        if tensor.derived and templates.matches(ranked + key, ends.types):
            found.append(Drop(key=key, why=f"derived: the source's manifest computes {tensor.role} from its config"))
    return found
