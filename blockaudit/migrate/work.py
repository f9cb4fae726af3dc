"""A map laid on one source: both sides, every step, the target's config, and what is wrong with it so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from blockaudit.manifest.bind import bind
from blockaudit.manifest.load import LoadedManifest
from blockaudit.migrate import optimizer, templates
from blockaudit.migrate.config import Carried, carried
from blockaudit.migrate.implied import with_axes, with_buffers
from blockaudit.migrate.load import LoadedMap
from blockaudit.migrate.moves import Move, Resolution, moves, step
from blockaudit.migrate.ops.base import OperationError
from blockaudit.migrate.sides import Side, fitting, pairing, slots_of
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import MigrationMap, Step


class Failed(msgspec.Struct, frozen=True):
    """A move whose operations cannot act on what it takes, and why not."""

    move: Move
    why: str


class Work(msgspec.Struct, frozen=True):
    """What the checks look at. `fed` and `taken` map a key to the numbers of the rules that feed or take it.

    A move that failed has no step; it takes what it takes all the same. `known` is what operations know beside their
    own words.
    """

    loaded: LoadedMap
    source: Side
    target: Side
    steps: tuple[Step, ...]
    carried: Carried
    flaws: tuple[Fault, ...]
    fed: dict[str, tuple[int, ...]]
    taken: dict[str, tuple[int, ...]]
    moves: tuple[Move, ...]
    failed: tuple[Failed, ...]
    known: Resolution
    states: tuple[Step, ...]  # of optimizer state

    @property
    def map(self) -> MigrationMap:
        return self.loaded.map


def lay(loaded: LoadedMap, source: Side, target: LoadedManifest) -> Work:
    """The map on this source. What cannot be worked out is a flaw, and the steps that can be are there."""
    config = carried(loaded.map, source.config, target.manifest, source.types)
    first = bind(target.manifest, config.config)
    dims = {**source.dims, **{n: d.value for n, d in first.dims.items() if d.known and d.value is not None}}
    loaded = msgspec.structs.replace(loaded, map=with_buffers(with_axes(_placed(loaded.map, dims))))
    map_ = loaded.map
    taking, flaws = moves(map_, source.types)
    flaws = [*config.flaws, *flaws]
    known = Resolution(dims, source.pairing, pairing(first))
    steps: list[Step] = []
    failed: list[Failed] = []
    for move in taking:
        try:
            steps.append(step(move, map_.rules[move.rule], source.types, known))
        except OperationError as error:
            failed.append(Failed(move, str(error)))
    states, spoilt = optimizer.carried(map_, steps, source.types)
    flaws += spoilt
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
    for one in states:
        for key in one.inputs:
            taken.setdefault(key, []).append(one.rule)
    return Work(
        loaded, source, side, tuple(steps), config, tuple(flaws),
        {k: tuple(v) for k, v in fed.items()}, {k: tuple(v) for k, v in taken.items()}, tuple(taking), tuple(failed),
        known, tuple(states),
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


def claims(map_: MigrationMap, key: str) -> list[int]:
    """The rules whose `to` could have made a key: more than one, and the way back is ambiguous."""
    return [n for n, r in enumerate(map_.rules) if any(templates.bind(t, key) is not None for t in r.targets)]
