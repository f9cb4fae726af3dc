"""A draft between two known manifests: everything that is stored has a place, and every place is one in the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from blockaudit.manifest.align import align
from blockaudit.manifest.bind import bind, classes
from blockaudit.manifest.load import LoadedManifest
from blockaudit.migrate import templates
from blockaudit.migrate.config import carried
from blockaudit.migrate.draft.configs import Keys, keys_of, renamed
from blockaudit.migrate.draft.ends import Ends
from blockaudit.migrate.draft.pairs import Paired, pair
from blockaudit.migrate.draft.pieces import Piece, pieces
from blockaudit.migrate.draft.records import Drafted, Undecided
from blockaudit.migrate.draft.rules import aliases, drops, rules
from blockaudit.migrate.draft.supplies import supplied
from blockaudit.migrate.load import LoadedMap
from blockaudit.migrate.sides import Side, bare
from blockaudit.migrate.work import lay
from blockaudit.reconcile.expand import templates_of
from blockaudit.records.bound import BoundManifest
from blockaudit.records.migration import MigrationMap

# Each round supplies what the one before found lost; a value may bring tensors that bring the need of another.
_ROUNDS = 4


class Laid(msgspec.Struct, frozen=True):
    """Both ends under one config of the target, and their pieces laid beside each other."""

    ends: Ends
    mine: tuple[Piece, ...]
    theirs: tuple[Piece, ...]
    paired: Paired


def draft_known(base: MigrationMap, source: Side, target: LoadedManifest, prefix: str = "") -> Drafted:
    """The map from a source whose manifest is known. `base` has its names; `prefix` stands before every key."""
    aligned = _aligned(source, target)
    keys, map_ = _renamed(base, source, aligned, target)
    told: list[Undecided] = []
    unsaid: list[Undecided] = []
    for _ in range(_ROUNDS):
        laid = _laid(map_, source, aligned, target, prefix)
        found, undecided = rules(laid.paired.pairs, laid.ends)
        map_ = replace(map_, rules=found, alias=aliases(laid.mine, laid.theirs), drop=drops(laid.ends, prefix))
        work = lay(LoadedMap(map_, base.name, ""), source, target)
        more, open_ = supplied(work, keys, laid.ends, laid.mine)
        told = [*undecided, *laid.paired.undecided, *_unpaired(laid.paired), *_strangers(laid, source, prefix)]
        unsaid += open_
        if not more.keys() - map_.supply.keys():
            break
        map_ = replace(map_, supply={**map_.supply, **more})
    return Drafted(map_, (*told, *unsaid))


def _aligned(source: Side, target: LoadedManifest) -> BoundManifest:
    """The source's manifest under the target's names, bound as the source is."""
    assert source.bound is not None
    manifest, _ = align(target.manifest, source.bound.manifest)
    return bind(manifest, source.config, class_name=source.bound.class_name)


def _renamed(
    base: MigrationMap, source: Side, aligned: BoundManifest, target: LoadedManifest
) -> tuple[Keys, MigrationMap]:
    made = carried(base, source.config, target.manifest, source.types).config
    first = bind(target.manifest, made)
    keys = keys_of(aligned, first, source.config or {}, made)
    config, supply = renamed(keys, aligned, first)
    return keys, replace(base, config=config, supply=supply)


def _laid(map_: MigrationMap, source: Side, aligned: BoundManifest, target: LoadedManifest, prefix: str) -> Laid:
    """The source beside the class of the target that leaves least over on either side."""
    made = carried(map_, source.config, target.manifest, source.types).config
    ranks = len({key.partition("/")[0] for key in source.types}) if map_.ranks is not None else 0
    stored = bare(source.types) if ranks else set(source.types)
    tried: list[Laid] = []
    for name in classes(target.manifest) or [None]:
        config = {**made, "architectures": [name]} if name else made
        ends = Ends(aligned, bind(target.manifest, config), source.types, ranks)
        mine = tuple(p for p in pieces(aligned, prefix) if p.expected.tied_to or _stored(p, stored))
        theirs = pieces(ends.target)
        tried.append(Laid(ends, mine, theirs, pair(mine, theirs)))
    return min(tried, key=lambda laid: len(_needed(laid.paired)) + len(_left(laid.paired, stored)))


def _stored(piece: Piece, stored: set[str]) -> bool:
    return bool(templates.matches(piece.expected.template, stored))


def _needed(paired: Paired) -> list[Piece]:
    return [p for p in paired.unfed if not (p.expected.optional or p.tied)]


def _left(paired: Paired, stored: Iterable[str]) -> list[Piece]:
    return [p for p in paired.left if not p.tied and _stored(p, set(stored))]


def _unpaired(paired: Paired) -> list[Undecided]:
    told = {u.subject for u in paired.undecided}
    found = [
        Undecided(p.expected.template, f"no tensor of the source is {_place(p)}: nothing feeds it")
        for p in _needed(paired)
    ]
    found += [
        Undecided(
            p.expected.template, f"it is {_place(p)} of the source, and the target has none: drop it with a reason"
        )
        for p in paired.left
        if not p.tied
    ]
    return [one for one in found if one.subject not in told]


def _place(piece: Piece) -> str:
    return f"{piece.expected.owner} {piece.expected.role}"


def _strangers(laid: Laid, source: Side, prefix: str) -> list[Undecided]:
    """Keys of the source that its manifest does not know."""
    known = [p.expected.template for p in laid.mine]
    known += [prefix + t.template for t in laid.ends.source.expected if t.derived]
    keys: Sequence[str] = sorted(bare(source.types) if laid.ends.ranks else source.types)
    strange = [key for key in keys if not any(templates.bind(t, key) is not None for t in known)]
    why = "the source's manifest knows no such key: name it in a rule, or drop it with a reason"
    return [Undecided(template, why) for template, _ in templates_of(strange)]
