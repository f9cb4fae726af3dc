"""A draft from a source whose manifest is not known: what one shape alone can be, and no more.

Templates of the source are the lists of its keys (`manifest.draft_keys`); how often they repeat, over layers and
experts, and their shape is all that is looked at. A template that is the only one of its kind on both sides is that
tensor. For linear maps this takes one convention ([out, in] or [in, out]) for all of a source, and is only said where
the counts of shapes rule the other one out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit.manifest.bind import bind, classes
from blockaudit.manifest.draft_keys import Keys, Template, group
from blockaudit.manifest.load import LoadedManifest
from blockaudit.migrate import templates
from blockaudit.migrate.config import carried
from blockaudit.migrate.draft.hints import hints
from blockaudit.migrate.draft.pairs import FUSED
from blockaudit.migrate.draft.pieces import Piece, pieces
from blockaudit.migrate.draft.records import Drafted, Undecided
from blockaudit.migrate.draft.rules import aliases
from blockaudit.records.bound import BoundManifest
from blockaudit.records.migration import MigrationMap, MoveRule, TensorType
from blockaudit.records.operations import Operation, Transpose


class Kind(msgspec.Struct, frozen=True):
    """In how many layers (None: in none), over which counts of other axes, of which shape."""

    layers: int | None
    counts: tuple[int, ...]
    shape: tuple[int | None, ...]

    @property
    def turned(self) -> Kind:
        return replace(self, shape=self.shape[::-1])


class _Side(msgspec.Struct, frozen=True):
    """The source's templates and the target's pieces by kind."""

    mine: Mapping[Kind, list[Template]]
    theirs: Mapping[Kind, list[Piece]]
    first: int  # what the layer numbers of the source count from


def draft_shapes(
    base: MigrationMap, types: Mapping[str, TensorType], config: dict[str, Any] | None, target: LoadedManifest
) -> Drafted:
    """The map of what shapes prove; everything else is undecided, with what it may be."""
    named = {key: found.shape for key, found in types.items() if not set("{}") & set(key)}
    keys = group(named)
    made = carried(base, config, target.manifest, types).config
    side, bound = min((_side(keys, target, made, name) for name in classes(target.manifest) or [None]), key=_odd)
    turned = _convention(side)
    rules: list[MoveRule] = []
    undecided: list[Undecided] = []
    for kind, wanted in side.theirs.items():
        found = _decided(kind, wanted, side, bound, turned)
        (rules if isinstance(found, MoveRule) else undecided).append(found)  # pyright: ignore[reportArgumentType]
    undecided += _strangers(side, turned)
    undecided += [Undecided(key, "a key with a brace cannot stand in a template") for key in types if key not in named]
    drafted = replace(base, rules=rules, alias=aliases((), [p for p in pieces(bound) if p.tied]))
    as_class = f"the target is taken for {bound.class_name}, whose tensors are most like the source's"
    return Drafted(drafted, tuple(undecided), (as_class,), tuple(hints(undecided, side.mine, side.theirs)))


def _side(keys: Keys, target: LoadedManifest, made: dict[str, Any], name: str | None) -> tuple[_Side, BoundManifest]:
    bound = bind(target.manifest, {**made, "architectures": [name]} if name else made)
    mine: dict[Kind, list[Template]] = {}
    for template in keys.templates:
        mine.setdefault(_kind_of(template, keys), []).append(template)
    theirs: dict[Kind, list[Piece]] = {}
    for piece in pieces(bound):
        if not (piece.expected.optional or piece.tied):
            counts = tuple(n for _, n in piece.expected.counts)
            layers = None if piece.layers is None else len(piece.layers)
            theirs.setdefault(Kind(layers, counts, piece.expected.shape), []).append(piece)
    return _Side(mine, theirs, keys.layers.start), bound


def _kind_of(template: Template, keys: Keys) -> Kind:
    """A template that some layers lack has no count of layers that any manifest has: it stays alone."""
    axes = [a for a in templates.axes(template.text) if a != "l"]
    layers = None if not template.in_layers else len(keys.layers) if template.when is None else -1
    return Kind(layers, tuple(keys.axes[a] for a in axes), template.shape)


def _odd(tried: tuple[_Side, BoundManifest]) -> int:
    """How many templates of either side have no counterpart, whichever way a matrix is stored."""
    mine, theirs = (_counted(side) for side in (tried[0].mine, tried[0].theirs))
    return sum(((mine - theirs) + (theirs - mine)).values())


def _counted(kinds: Mapping[Kind, Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for kind, ones in kinds.items():
        found[kind.layers, kind.counts, *sorted(map(str, kind.shape))] += len(ones)
    return found


def _convention(side: _Side) -> bool | None:
    """Whether the source stores its linear maps the other way round than the target; None: nothing proves either.

    A pair of sizes that has more maps one way than the other shows it, if both sides have as many of them in all.
    """
    proved: set[bool] = set()
    for kind in side.theirs:
        if _is_linear(kind, side) and kind.shape != kind.turned.shape:
            one, two = (_counts(kinds, kind) for kinds in (side.mine, side.theirs))
            if one == two != two[::-1]:
                proved.add(False)
            if one == two[::-1] != two:
                proved.add(True)
    return proved.pop() if len(proved) == 1 else None


def _counts(kinds: Mapping[Kind, Sequence[Any]], kind: Kind) -> tuple[int, int]:
    return len(kinds.get(kind, ())), len(kinds.get(kind.turned, ()))


def _is_linear(kind: Kind, side: _Side) -> bool:
    return len(kind.shape) == 2 and all(p.expected.what != "embedding" for p in side.theirs.get(kind, ()))


def _decided(
    kind: Kind, wanted: list[Piece], side: _Side, bound: BoundManifest, turned: bool | None
) -> MoveRule | Undecided:
    """The rule of a kind that is one tensor on both sides, else why there is none."""
    linear = _is_linear(kind, side)
    given = side.mine.get(kind.turned if linear and turned else kind, [])
    names = tuple(sorted(t.text for t in given))
    why = _hidden(wanted[0], kind, bound, turned if linear else False)
    if not given:
        why = f"the source has no tensor of shape {list(kind.shape)}{_often(kind)}"
    elif len(wanted) > 1 or len(given) > 1:
        why = f"shape {list(kind.shape)}{_often(kind)} cannot tell them apart; the source has {', '.join(names)}"
    elif why is None:
        ops: list[Operation] = [Transpose()] if linear and turned else []
        return MoveRule(from_=_shifted(given[0].text, side.first, wanted[0]), to=wanted[0].text, ops=ops)
    else:
        why = f"{names[0]} has its shape, but {why}"
    return Undecided(_listed(p.text for p in wanted), why, names)


def _hidden(piece: Piece, kind: Kind, bound: BoundManifest, turned: bool | None) -> str | None:
    """What no shape shows of a tensor, though it is the only one that has it."""
    role, owner = piece.place.role, piece.expected.owner
    if piece.place.what == "norm" and role == "weight":
        return "whether the gain is stored as w or as 1 + w is not shown: rename it, or add 1 or -1"
    if role in FUSED:
        return "how its rows lie is not shown: give a layout, or the order of gate and up"
    if role in FUSED["qkv"] and f"{owner}.rotary.pairing" in bound.functions and role != "v":
        return 'the pairing of rotary coordinates is not shown: give permute_rope, or "keeps": ["rope"]'
    if len(kind.shape) == 2 and turned is not False and kind.shape == kind.turned.shape:
        return 'it is square, and which axis is the output is not shown: give transpose, or "keeps": ["axes"]'
    if turned is None:
        return "nothing shows which axis of the source's matrices is the output"
    return None


def _often(kind: Kind) -> str:
    layers = "" if kind.layers is None else f" in {kind.layers} layers"
    return layers + "".join(f" of {n} each" for n in kind.counts)


def _shifted(text: str, first: int, piece: Piece) -> str:
    """The source's template, its layers counted as the target's template counts them."""
    ahead = first - piece.shift
    return text.replace("{l}", f"{{l+{ahead}}}") if ahead > 0 else text


def _strangers(side: _Side, turned: bool | None) -> Iterable[Undecided]:
    """Templates of the source whose shape nothing in the target has."""
    for kind, found in side.mine.items():
        here = kind.turned if turned and len(kind.shape) == 2 else kind
        if here not in side.theirs and kind not in side.theirs:
            yield Undecided(_listed(t.text for t in found), f"the target has no tensor of shape {list(kind.shape)}"
                            f"{_often(kind)}")  # fmt: skip


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
