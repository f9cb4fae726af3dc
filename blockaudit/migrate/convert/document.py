"""What a conversion says of itself: the rows of `conversion-report.json`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from blockaudit import __version__
from blockaudit.migrate import ops
from blockaudit.migrate.convert.layout import TargetFile, units_of
from blockaudit.migrate.convert.proof import lost_by, undoing
from blockaudit.records.conversion import ConfigRow, Conversion, RoundTripRow, TensorRow
from blockaudit.records.migration import Filled, Plan
from blockaudit.records.operations import Operation

REPORT = "conversion-report.json"
ROLLBACK = "rollback.json"


def written(record: msgspec.Struct) -> bytes:
    """A record as the file that it is."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


class Document(msgspec.Struct, frozen=True):
    """What is read again of `conversion-report.json`: a report of kind conversion, of which this is the part."""

    conversion: Conversion


def alone(conversion: Conversion) -> bytes:
    """The file where there is no report around the record."""
    return written(Document(conversion))


def plan_sha256(plan: Plan, most: int) -> str:
    """The hash of all that is going to be done, by this version. most: tensor bytes of one file."""
    return hashlib.sha256(msgspec.json.encode((__version__, most, plan), order="deterministic")).hexdigest()


def tensor_rows(plan: Plan, files: Sequence[TargetFile], digests: Mapping[str, str]) -> tuple[TensorRow, ...]:
    """One row for each tensor that is stored, by key."""
    units = units_of(plan)
    rows: list[TensorRow] = []
    for file in files:
        for work in file.works:
            unit = units[work.unit]
            for placed in work.outputs:
                what = TensorRow(
                    placed.key,
                    file.name,
                    placed.type.dtype,
                    placed.type.shape,
                    "filled",
                    digest=digests.get(placed.key, ""),
                )
                rows.append(msgspec.structs.replace(what, **_origin(unit, placed.key)))
    return tuple(sorted(rows, key=lambda row: row.key))


def _origin(unit: Any, key: str) -> dict[str, Any]:
    if isinstance(unit, Filled):
        return {"value": unit.value, "why": unit.why}
    if unit.copies:
        return {"how": "copied", "sources": (unit.inputs[unit.outputs.index(key)],), "rule": unit.rule}
    return {"how": "computed", "sources": unit.inputs, "rule": unit.rule, "ops": tuple(map(ops.name, unit.ops))}


def round_trip_rows(plan: Plan) -> tuple[RoundTripRow, ...]:
    """One row for each rule with operations; what could be run back was, or the conversion would have stopped."""
    tensors: Counter[tuple[int, tuple[str, ...], str, str]] = Counter()
    for step in plan.steps:
        if step.copies:
            continue
        back = undoing(step)
        lost = ("", "") if isinstance(back, list) else (ops.name(back), lost_by(_given(step.ops, back)))
        tensors[step.rule, tuple(map(ops.name, step.ops)), *lost] += len(step.inputs)
    return tuple(
        RoundTripRow(rule, names, count, "not_reversible" if op else "identical", op, why)
        for (rule, names, op, why), count in sorted(tensors.items())
    )


def _given(operations: Sequence[Operation], lost: Operation) -> Operation:
    """The operation as the step has it."""
    return next((op for op in operations if op == lost), lost)


def config_rows(source: Mapping[str, Any] | None, target: Mapping[str, Any]) -> tuple[ConfigRow, ...]:
    """Every key that one side lacks, or that has another value there, sorted."""
    return tuple(_config_rows(source or {}, target))


def _config_rows(source: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[ConfigRow]:
    for key in sorted(source.keys() | target.keys()):
        if key in source and key in target and source[key] == target[key] and type(source[key]) is type(target[key]):
            continue
        sides = [side for side, config in (("source", source), ("target", target)) if key in config]
        yield ConfigRow(key, source.get(key), target.get(key), tuple(sides))  # pyright: ignore[reportArgumentType]
