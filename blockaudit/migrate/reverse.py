"""The way back: a map with its two sides exchanged and every operation undone."""

from __future__ import annotations

from msgspec.structs import replace

from blockaudit.migrate.load import InvalidMap, LoadedMap
from blockaudit.migrate.ops import handler, name
from blockaudit.records.migration import Buffer, Drop, MigrationMap, MoveRule
from blockaudit.records.operations import Operation


def reversed_map(loaded: LoadedMap) -> LoadedMap:
    """The map from the target back to the source. Raises InvalidMap where it has no way back, with the rule.

    Of a map with `ranks` it is the way back to one rank, which holds everything.
    """
    map_ = loaded.map
    if map_.source is None:
        raise InvalidMap(f"{loaded.id}: the way back needs the source's manifest: name it under `source`")
    back = MigrationMap(
        schema=map_.schema,
        name=f"{map_.name} (reversed)",
        source=map_.target,
        target=map_.source,
        evidence=map_.evidence,
        config=_config(map_),
        supply=map_.supply_back,
        supply_back=map_.supply,
        config_file=map_.config_file,
        rules=[_rule(loaded.id, n, rule) for n, rule in enumerate(map_.rules)],
        alias=map_.alias,
        drop=[Drop(key=i.key, why=f"made by the way there: {i.why}") for i in map_.init],
        buffers=[Buffer(key=b.key, do="carry") for b in map_.buffers if b.do == "carry"],
        optimizer=map_.optimizer,
    )
    return LoadedMap(back, loaded.id, loaded.sha256, reversed=True)


def _config(map_: MigrationMap) -> dict[str, str | None]:
    """Names back to what they were; what the way there supplied is left behind."""
    config: dict[str, str | None] = {new: old for old, new in map_.config.items() if new is not None}
    return config | {key: None for key in map_.supply if key not in config}


def _rule(where: str, number: int, rule: MoveRule) -> MoveRule:
    whole = [op for op in rule.ops if getattr(op, "axis", None) != "r"]
    ops = [_undone(where, number, op) for op in reversed(whole)]
    return replace(rule, from_=rule.to, to=rule.from_, ops=ops)


def _undone(where: str, number: int, op: Operation) -> Operation:
    """The operation that undoes one, as far as its own words say. Raises InvalidMap."""
    found = handler(op).backwards(op)
    if found is None:
        raise InvalidMap(f"{where}: rules[{number}]: {name(op)} has no inverse in its own words: there is no way back")
    return found
