"""Config values that the target reads and the source's config lacks: fixed in its class, or sizes of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blockaudit.manifest.functions import SCALING as SPELLINGS
from blockaudit.migrate.draft.configs import Keys, preferred
from blockaudit.migrate.draft.ends import Ends, first_key
from blockaudit.migrate.draft.pieces import Piece
from blockaudit.migrate.draft.probe import SCALING, items
from blockaudit.migrate.draft.ranks import AXIS
from blockaudit.migrate.draft.records import Undecided
from blockaudit.migrate.draft.values import agreeing, with_value
from blockaudit.migrate.work import Work
from blockaudit.records.bound import BoundManifest

_TIE = "tie."


def supplied(work: Work, keys: Keys, ends: Ends, pieces: Sequence[Piece]) -> tuple[dict[str, Any], list[Undecided]]:
    """Values for keys of the target under which it is what the source is: sizes, ties, and what the contracts ask."""
    source, target = items(ends.source), items(ends.target)
    found = {
        **dict(_sizes(keys, ends, pieces, source, target)),
        **dict(_ties(keys, ends, target)),
        **dict(_scaling(keys, source, target)),
    }
    for key, value in found.items():
        of_a_tensor = isinstance(value, dict) and "tensor" in value
        work = with_value(work, key, source[_dim(keys, key)].value if of_a_tensor else value)
    more, undecided = agreeing(work)
    return {**found, **more}, undecided


def _dim(keys: Keys, key: str) -> str:
    return next(n for n, spelt in keys.theirs.items() if n.startswith("dims.") and key in spelt)


def _known(side: Mapping[str, Any], name: str) -> bool:
    return name in side and side[name].known


def _scaling(keys: Keys, source: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The whole object that stretches rotary frequencies, where the source's class holds it itself."""
    for field, spelt in keys.theirs.items():
        if field.endswith(SCALING):
            mine, theirs = (_stretched(field.removesuffix(".scaling"), side) for side in (source, target))
            if mine != theirs:
                yield preferred(spelt, whole=True), mine


def _stretched(owner: str, side: Mapping[str, Any]) -> dict[str, Any]:
    """What stretches the frequencies, in the words of a config; nothing but the type where nothing does."""
    parts = {n: side[f"{owner}.{n}"].value for n in SPELLINGS if _known(side, f"{owner}.{n}")}
    whole = {SPELLINGS[n][0]: value for n, value in parts.items()}
    return {"rope_type": "default"} if parts.get("type", "default") == "default" else whole


def _sizes(
    keys: Keys, ends: Ends, pieces: Sequence[Piece], source: Mapping[str, Any], target: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Dimensions that the target's config gives and the source's does not: read off a tensor that has them."""
    for field, spelt in keys.theirs.items():
        value = target.get(field)
        if not field.startswith("dims.") or value is None or not _known(source, field):
            continue
        if source[field].value != value.value:
            yield preferred(spelt), _size(field.removeprefix("dims."), ends, pieces) or source[field].value


def _size(symbol: str, ends: Ends, pieces: Sequence[Piece]) -> dict[str, Any] | None:
    for piece in pieces:
        symbols = piece.expected.symbols
        if symbol in symbols and (stored := ends.stored(piece)):
            dim = symbols.index(symbol)
            cut = len(stored) > 1 and ends.types[stored[0]].shape[dim] != piece.expected.shape[dim]
            return {"tensor": first_key(piece), "dim": dim, **({"axis": AXIS} if cut else {})}
    return None


def _ties(keys: Keys, ends: Ends, target: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """A head that the target's config ties, where the source's says nothing of ties: apart if it is stored."""
    for field, spelt in keys.theirs.items():
        role = field.removeprefix(_TIE)
        if not field.startswith(_TIE) or field in keys.mine or not target[field].implied:
            continue
        tied = _tied(role, ends.source)
        if tied is not None:
            yield preferred(spelt), tied


def _tied(role: str, source: BoundManifest) -> bool | None:
    """Whether the source's head is another tensor: as its tie says, else by whether its class then stores one."""
    mine = [t for t in source.expected if t.what == "part" and t.role == role]
    if mine:
        return mine[0].tied is not None and bool(mine[0].tied.value)
    declared = {t.role for n, part in source.manifest.parts.items() if n in _parts(source) for t in part}
    return True if role in declared else None


def _parts(source: BoundManifest) -> list[str]:
    spec = source.manifest.match.classes.get(source.class_name or "")
    spec = spec or next(iter(source.manifest.match.classes.values()), None)
    return [] if spec is None else spec.parts
