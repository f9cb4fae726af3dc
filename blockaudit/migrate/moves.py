"""Rules laid on the keys of a source: one move for each place of the axes that `from` and `to` share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit.migrate import ops, templates
from blockaudit.migrate.ops.base import OperationError
from blockaudit.migrate.symbols import resolved
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import MigrationMap, MoveRule, Row, State, Step, TensorType
from blockaudit.records.operations import Concat, Operation, PermuteRope, Replicated, Split, Stack, Unstack


class Move(msgspec.Struct, frozen=True):
    """One rule at one place: what it takes. `binding` are the axes that both sides have."""

    rule: int
    binding: templates.Binding
    sources: State[str]


class Resolution(msgspec.Struct, frozen=True):
    """What operations need to know beside their own words: dimension symbols, and the pairings of either side."""

    dims: Mapping[str, Any]
    source_pairing: str | None
    target_pairing: str | None

    def of(self, rule: MoveRule) -> tuple[Operation, ...]:
        """The rule's operations, worked out. Raises OperationError."""
        found: list[Operation] = []
        for op in rule.ops:
            op = resolved(op, self.dims)
            if isinstance(op, PermuteRope):
                op = self._paired(op)
            parts = isinstance(op, Split) and op.layout is None and op.sizes is None and op.axis is None
            if isinstance(op, Split) and parts and op.count is None:
                op = replace(op, count=len(rule.targets))
            found.append(op)
        return tuple(found)

    def _paired(self, op: PermuteRope) -> PermuteRope:
        """`from` and `to` as the manifests say them; where only one end is known, the other is the other pairing."""
        other = {"half": "interleaved", "interleaved": "half"}
        to = op.to or self.target_pairing or other.get(op.from_ or "")
        from_ = op.from_ or self.source_pairing or other.get(to or "")
        return replace(op, from_=from_, to=to)


def moves(map_: MigrationMap, keys: Iterable[str]) -> tuple[list[Move], list[Fault]]:
    """Every move of every rule. A rule that finds only some of what it takes at a place is a flaw."""
    keys = list(keys)
    found: list[Move] = []
    flaws: list[Fault] = []
    for number, rule in enumerate(map_.rules):
        unwritable = list(_unwritable(number, rule, map_))
        flaws += unwritable
        if unwritable:
            continue
        groups = _grouped(rule, _prefixed(rule.sources, map_), keys)
        for binding, rows in groups.items():
            lacking = _lacking(rows, len(rule.sources))
            if lacking is not None:
                missing = templates.fill(_prefixed(rule.sources, map_)[lacking[1]], (*binding, *lacking[0]))
                flaws.append(_incomplete(number, missing))
                continue
            state = tuple(Row(at, tuple(rows[at][n] for n in range(len(rule.sources)))) for at in sorted(rows))
            found.append(Move(number, binding, state))
    return found, flaws


_At = tuple[tuple[str, int], ...]


def _prefixed(sources: list[str], map_: MigrationMap) -> list[str]:
    """Templates of the keys as the source has them: those of rank files begin with the rank."""
    return sources if map_.ranks is None else [f"{{r}}/{template}" for template in sources]


def _grouped(rule: MoveRule, sources: list[str], keys: list[str]) -> dict[templates.Binding, dict[_At, dict[int, str]]]:
    """Shared axes -> the place on the other axes of `from` -> which template -> key."""
    shared = {axis for target in rule.targets for axis in templates.axes(target)}
    groups: dict[templates.Binding, dict[_At, dict[int, str]]] = {}
    for n, template in enumerate(sources):
        for binding, key in templates.matches(template, keys).items():
            mine = tuple(p for p in binding if p[0] in shared)
            at: Any = tuple(p for p in binding if p[0] not in shared)
            groups.setdefault(mine, {}).setdefault(at, {})[n] = key
    return groups


def _lacking(rows: dict[_At, dict[int, str]], wanted: int) -> tuple[_At, int] | None:
    """The first place at which a template of `from` found nothing though another did."""
    for at in sorted(rows):
        for n in range(wanted):
            if n not in rows[at]:
                return at, n
    return None


def _incomplete(rule: int, missing: str) -> Fault:
    return Fault(
        "map-not-total",
        f"rules[{rule}]",
        f"rule {rule} takes several tensors at a time, and the source has no {missing} to go with the others",
        (missing,),
        expected=missing,
        observed=None,
    )


def _unwritable(number: int, rule: MoveRule, map_: MigrationMap) -> Iterator[Fault]:
    """Axes of `from` or `to` that no operation closes or opens, and copies of several tensors."""
    taken = {a for t in _prefixed(rule.sources, map_) for a in templates.axes(t)}
    given = {a for t in rule.targets for a in templates.axes(t)}
    closed = {op.axis for op in rule.ops if isinstance(op, Stack | Concat | Replicated) and op.axis}
    opened = {op.axis for op in rule.ops if isinstance(op, Split | Unstack) and op.axis}
    if len({frozenset(templates.axes(t)) for t in rule.sources}) > 1:
        yield _invalid(number, "the templates of `from` have not the same axes: what is taken together is of one place")
        return
    for axis in sorted(taken - given - closed):
        word = "the rest of a key" if axis == "*" else f"axis {{{axis}}}"
        yield _invalid(
            number, f"{word} stands in `from` alone: name it in `to`, or close it with stack, concat or replicated"
        )
    for axis in sorted(given - taken - opened):
        yield _invalid(
            number, f"axis {{{axis}}} stands in `to` alone: name it in `from`, or open it with unstack or split"
        )
    if not rule.ops and (len(rule.sources) > 1 or len(rule.targets) > 1):
        yield _invalid(number, f"{len(rule.sources)} tensors become {len(rule.targets)} and no operation says how")


def _invalid(number: int, why: str) -> Fault:
    return Fault("map-invalid", f"rules[{number}]", f"rule {number}: {why}", evidence=f"rules[{number}]")


def step(move: Move, rule: MoveRule, types: Mapping[str, TensorType], known: Resolution) -> Step:
    """A move with its types and target keys. Raises OperationError, one line."""
    operations = known.of(rule)
    before: State[TensorType] = tuple(Row(r.at, tuple(types[k] for k in r.values)) for r in move.sources)
    after = ops.types_after(operations, before)[-1]
    names: list[Row[str]] = []
    out: dict[str, TensorType] = {}
    for row in after:
        if len(row.values) != len(rule.targets):
            raise OperationError(f"gives {len(row.values)} tensors, and `to` names {len(rule.targets)}")
        try:
            keys = tuple(templates.fill(t, (*move.binding, *row.at)) for t in rule.targets)
        except KeyError as error:
            raise OperationError(f"leaves axis {error.args[0]} of `to` without a number") from error
        names.append(Row(row.at, keys))
        out.update(zip(keys, row.values, strict=True))
    inputs = {key: types[key] for row in move.sources for key in row.values}
    return Step(move.rule, move.sources, operations, tuple(names), inputs, out)
