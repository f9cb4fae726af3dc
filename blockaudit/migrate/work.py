"""A map laid on one source: both sides, every step, the target's config, and what is wrong with it so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from blockaudit.manifest.bind import bind
from blockaudit.manifest.load import LoadedManifest
from blockaudit.migrate import templates
from blockaudit.migrate.config import Carried, carried
from blockaudit.migrate.load import LoadedMap
from blockaudit.migrate.moves import Move, Resolution, moves, step
from blockaudit.migrate.ops.base import OperationError
from blockaudit.migrate.sides import Side, fitting, slots_of
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import MigrationMap, Step, TensorType


class Work(msgspec.Struct, frozen=True):
    """What the checks look at. `fed` and `taken` map a key to the numbers of the rules that feed or take it."""

    loaded: LoadedMap
    source: Side
    target: Side
    steps: tuple[Step, ...]
    carried: Carried
    flaws: tuple[Fault, ...]
    fed: dict[str, tuple[int, ...]]
    taken: dict[str, tuple[int, ...]]

    @property
    def map(self) -> MigrationMap:
        return self.loaded.map


def lay(loaded: LoadedMap, source: Side, target: LoadedManifest) -> Work:
    """The map on this source. What cannot be worked out is a flaw, and the steps that can be are there."""
    config = carried(loaded.map, source.config, target.manifest, source.types)
    first = bind(target.manifest, config.config)
    dims = {**source.dims, **{n: d.value for n, d in first.dims.items() if d.known and d.value is not None}}
    loaded = msgspec.structs.replace(loaded, map=_placed(loaded.map, dims))
    map_ = loaded.map
    taking, flaws = moves(map_, source.types)
    flaws = [*config.flaws, *flaws]
    steps = list(_steps(map_, taking, source, first, dims, flaws))
    out = {key: type_ for one in steps for key, type_ in one.out_types.items()}
    held = {*out, *aliased(map_, 0), *(i.key for i in map_.init)}
    bound = fitting(target, config.config, held)
    classed = {**config.config, "architectures": [bound.class_name]} if bound.class_name else config.config
    side = Side(target, bound, slots_of(bound), out, classed)
    config = msgspec.structs.replace(config, config=classed)
    fed: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}
    for one in steps:
        for key in one.outputs:
            fed.setdefault(key, []).append(one.rule)
    for move in taking:
        for row in move.sources:
            for key in row.values:
                taken.setdefault(key, []).append(move.rule)
    return Work(
        loaded, source, side, tuple(steps), config, tuple(flaws),
        {k: tuple(v) for k, v in fed.items()}, {k: tuple(v) for k, v in taken.items()},
    )  # fmt: skip


def aliased(map_: MigrationMap, place: int) -> list[str]:
    """Keys that stand first (0) or second (1) in an alias."""
    return [pair[place] for pair in map_.alias]


def _placed(map_: MigrationMap, dims: Mapping[str, Any]) -> MigrationMap:
    """The map with every dimension symbol that stands in a key (`sequential.{n_layers+3}`) as its number."""

    def text(key: str) -> str:
        return templates.placed(key, dims)

    def named(given: str | list[str]) -> str | list[str]:
        return text(given) if isinstance(given, str) else [text(one) for one in given]

    change = msgspec.structs.replace
    return change(
        map_,
        rules=[change(rule, from_=named(rule.from_), to=named(rule.to)) for rule in map_.rules],
        alias=[(text(one), text(other)) for one, other in map_.alias],
        drop=[change(one, key=text(one.key)) for one in map_.drop],
        init=[change(one, key=text(one.key)) for one in map_.init],
        buffers=[change(one, key=text(one.key)) for one in map_.buffers],
    )


def _steps(
    map_: MigrationMap,
    taking: Iterable[Move],
    source: Side,
    first: BoundManifest,
    dims: Mapping[str, Any],
    flaws: list[Fault],
) -> Iterable[Step]:
    told: set[tuple[int, str]] = set()
    for move in taking:
        rule = map_.rules[move.rule]
        known = Resolution(dims, pairing(source.bound), pairing(first))
        try:
            yield step(move, rule, source.types, known)
        except OperationError as error:
            # A rule that fails in every layer fails once.
            if (move.rule, str(error)) not in told:
                told.add((move.rule, str(error)))
                flaws.append(_failed(move, rule.sources[0], str(error), source.types))


def pairing(bound: BoundManifest | None) -> str | None:
    """The pairing of rotary coordinates, where a manifest has one and no more."""
    if bound is None:
        return None
    said = {v.value for name, v in bound.functions.items() if name.endswith(".rotary.pairing") and v.known}
    return said.pop() if len(said) == 1 else None


def _failed(move: Move, template: str, why: str, types: Mapping[str, TensorType]) -> Fault:
    keys = tuple(key for row in move.sources for key in row.values)
    rule = "map-undeclared-layout" if "no manifest says which pairing" in why else "map-shape-mismatch"
    return Fault(
        rule,
        f"rules[{move.rule}]",
        f"rule {move.rule} ({template}), {why}",
        keys,
        observed={key: list(types[key].shape) for key in keys[:4]},
        evidence=f"rules[{move.rule}].ops",
    )


def claims(map_: MigrationMap, key: str) -> list[int]:
    """The rules whose `to` could have made a key: more than one, and the way back is ambiguous."""
    return [n for n, r in enumerate(map_.rules) if any(templates.bind(t, key) is not None for t in r.targets)]
