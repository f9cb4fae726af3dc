"""An imported mapping as a map: asked of every key template of the source's manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Marks

import msgspec

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.manifest.bind import bind
from blockaudit.manifest.load import LoadedManifest, library
from blockaudit.migrate import templates
from blockaudit.migrate.draft.pieces import Piece, pieces
from blockaudit.migrate.draft.records import Drafted, Undecided
from blockaudit.migrate.draft.rules import aliases
from blockaudit.migrate.importing.steps import Mapping, Renamed
from blockaudit.records.migration import MigrationMap, MoveRule

# Numbers that stand for an axis while a mapping looks at a key: none that a key would have.
_MARKS = ("7000001", "7000003", "7000007")


class Imported(msgspec.Struct, frozen=True):
    """The drafted map and its two manifests."""

    drafted: Drafted
    source: LoadedManifest
    target: LoadedManifest


def imported(mapping: Mapping, name: str, source: LoadedManifest, target: LoadedManifest | None) -> Imported:
    """The map of a mapping between two manifests. Without a target, the manifest that has the keys it writes.

    Raises RequestError where no manifest does.
    """
    # Branches of several kinds of layer may share a template.
    mine = tuple({p.expected.template: p for p in pieces(bind(source.manifest, {}))}.values())
    rules, undecided = _rules(mapping, mine)
    target = target or _writing(rules, source)
    theirs = pieces(bind(target.manifest, {}))
    map_ = MigrationMap(
        schema="blockaudit/map/1",
        name=name,
        source=source.id,
        target=target.id,
        evidence=mapping.evidence,
        rules=rules,
        alias=aliases(mine, theirs),
    )
    return Imported(Drafted(map_, tuple(undecided)), source, target)


def _rules(mapping: Mapping, mine: Sequence[Piece]) -> tuple[list[MoveRule], list[Undecided]]:
    rules: list[MoveRule] = []
    undecided: list[Undecided] = []
    joined: dict[tuple[int, tuple[str, ...]], dict[int, tuple[Piece, Renamed]]] = {}
    for piece in mine:
        try:
            found = _asked(mapping, piece.expected.template)
        except _Lost as error:
            undecided.append(Undecided(piece.expected.template, str(error)))
            continue
        if found.why_not:
            undecided.append(Undecided(piece.expected.template, found.why_not))
        elif found.group is None:
            rules.append(_rule([piece], found))
        else:
            group = joined.setdefault((found.group, found.names), {})
            group[found.place] = (piece, found)
            if len(group) == found.of:
                rules.append(_rule([group[n][0] for n in sorted(group)], found))
    for (_, names), group in joined.items():
        wanted = next(iter(group.values()))[1].of
        if len(group) < wanted:
            why = f"{len(group)} of the {wanted} tensors that make {', '.join(names)} are keys of the source's manifest"
            undecided += [Undecided(piece.expected.template, why) for piece, _ in group.values()]
    return rules, undecided


def _rule(sources: list[Piece], found: Renamed) -> MoveRule:
    given = [piece.expected.template for piece in sources]
    optional = any(p.expected.optional or p.expected.tied_to is not None for p in sources)
    return MoveRule(
        from_=given[0] if len(given) == 1 else given,
        to=found.names[0] if len(found.names) == 1 else list(found.names),
        ops=list(found.ops),
        optional=optional,
    )


class _Lost(Exception):
    """A number of the key is not in its new name as it was."""


def _asked(mapping: Mapping, template: str) -> Renamed:
    """What a mapping does to the keys of a template, as templates. Raises _Lost."""
    axes = templates.axes(template)
    marks = dict(zip(axes, _MARKS, strict=False))
    if len(marks) < len(axes):
        raise _Lost(f"{len(axes)} axes are more than an imported mapping is asked of")
    key = templates.AXIS.sub(lambda m: marks[m[1]], template)
    lost = tuple(a for a in axes if marks[a] not in mapping.renamed(key, ()).names[0])
    if "l" in lost:
        raise _Lost("the layer's number is not in its new name as it was: layers are counted anew")
    found = mapping.renamed(key, lost)
    if lost and found.group is None:
        raise _Lost(f"{', '.join(lost)} is lost from its new name, and nothing lays the tensors together")
    return msgspec.structs.replace(found, names=tuple(_back(name, marks) for name in found.names))


def _back(name: str, marks: Marks[str, str]) -> str:
    for axis, mark in marks.items():
        name = name.replace(mark, f"{{{axis}}}")
    return name


def _writing(rules: Iterable[MoveRule], source: LoadedManifest) -> LoadedManifest:
    """The one manifest, of the source's family or of a layout, that has every key which is written."""
    written = {target for rule in rules for target in rule.targets}
    fitting: list[LoadedManifest] = []
    for loaded in (source, *(library(name) for name in resources.layout_ids())):
        known = {p.expected.template for p in pieces(bind(loaded.manifest, {}))}
        if written and written <= known:
            fitting.append(loaded)
    if len(fitting) == 1:
        return fitting[0]
    have = ", ".join(f.id for f in fitting) or "no manifest of the library"
    shown = ", ".join(sorted(written)[:3]) or "nothing"
    raise RequestError(f"{have} has the keys that the mapping writes ({shown}): name the target with --target")
