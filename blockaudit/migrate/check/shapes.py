"""Shapes after all operations, held to those that the target's manifest expects under the target's config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from blockaudit.migrate.check.pairs import role_of
from blockaudit.migrate.moves import Move, step
from blockaudit.migrate.ops.base import OperationError
from blockaudit.migrate.sides import Slot
from blockaudit.migrate.templates import fill
from blockaudit.migrate.work import Failed, Work
from blockaudit.reconcile.expand import templates_of
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import MoveRule, Step
from blockaudit.records.operations import Split, Transpose

_PARTS = {"q", "k", "v"}


def shapes(work: Work) -> Iterator[Fault]:
    """`map-shape-mismatch`, and `map-undeclared-transpose` or `-layout` where that alone is what is missing."""
    told: set[int] = set()
    for failed in work.failed:
        # A rule that fails in every layer fails once.
        if failed.move.rule not in told:
            told.add(failed.move.rule)
            yield _failed(work, failed)
    for one in work.steps:
        if one.rule not in told and not all(_fits(work, k, one) for k in one.outputs):
            told.add(one.rule)
            yield from _misshapen(work, one)


def _fits(work: Work, key: str, one: Step) -> bool:
    slot = work.target.slots.get(key)
    if slot is None or slot.expected.unsized:
        return True  # that there is no such key is told by itself
    found, wanted = one.out_types[key].shape, slot.expected.shape
    return len(found) == len(wanted) and all(w in (None, f) for f, w in zip(found, wanted, strict=True))


def _misshapen(work: Work, one: Step) -> Iterator[Fault]:
    rule = work.map.rules[one.rule]
    move = next(m for m in work.moves if m.rule == one.rule and m.sources == one.sources)
    if _turned(work, move):
        yield _transpose(one.rule, rule, f"gives {_shapes(one)}", one.outputs)
        return
    for template, keys in templates_of([k for k in one.outputs if not _fits(work, k, one)]):
        found, wanted = list(one.out_types[keys[0]].shape), list(work.target.slots[keys[0]].expected.shape)
        yield Fault(
            "map-shape-mismatch",
            template,
            f"rule {one.rule} gives {template} the shape {found}, and the target expects {wanted}",
            tuple(keys),
            expected=wanted,
            observed=found,
            evidence=f"rules[{one.rule}]",
        )


def _turned(work: Work, move: Move) -> bool:
    """Whether one transpose more, or one less, gives every shape that the target expects."""
    rule = work.map.rules[move.rule]
    ops = rule.ops
    tries: list[list[Any]] = [[Transpose(), *ops]]
    tries += [[*ops, Transpose()]] if len(rule.targets) == 1 else []
    tries += [[*ops[:n], *ops[n + 1 :]] for n, op in enumerate(ops) if isinstance(op, Transpose)]
    for tried in tries:
        try:
            one = step(move, replace(rule, ops=tried), work.source.types, work.known)
        except OperationError:
            continue
        if all(k in work.target.slots and _fits(work, k, one) for k in one.outputs):
            return True
    return False


def _failed(work: Work, failed: Failed) -> Fault:
    move, why = failed.move, failed.why
    rule = work.map.rules[move.rule]
    keys = tuple(key for row in move.sources for key in row.values)
    if _turned(work, move):
        return _transpose(move.rule, rule, why, keys)
    roles = {role_of(slot) for slot in _slots(work, move)}
    # Head counts say where rows lie: one that the map gives and that does not divide them is the wrong layout. One that
    # it takes from the config is the config's.
    given = any(isinstance(op, Split) and isinstance(op.heads, int) for op in rule.ops)
    heads = "(permute_rope)" in why or ("(split)" in why and " heads" in why and given)
    unlaid = any(isinstance(op, Split) and op.layout is None for op in rule.ops) and len(roles & _PARTS) > 1
    layout = ': declare "layout": "qkv", "per_head" or "per_group", with heads and kv_heads' if unlaid else ""
    return Fault(
        "map-undeclared-layout" if unlaid or heads else "map-shape-mismatch",
        rule.targets[0],
        f"rule {move.rule} ({rule.sources[0]}), {why}{layout}",
        keys,
        observed={key: list(work.source.types[key].shape) for key in keys[:4]},
        evidence=f"rules[{move.rule}].ops",
    )


def _slots(work: Work, move: Move) -> list[Slot]:
    """The slots that a move would have fed, as far as its own place says which they are."""
    return [work.target.slots[k] for k in fed_by(work.map.rules[move.rule], move) if k in work.target.slots]


def fed_by(rule: MoveRule, move: Move) -> list[str]:
    """Target keys of a move that failed, where its templates name no axis that an operation would have opened."""
    try:
        return [fill(template, move.binding) for template in rule.targets]
    except KeyError:
        return []


def _transpose(number: int, rule: MoveRule, why: str, keys: tuple[str, ...]) -> Fault:
    turned = any(isinstance(op, Transpose) for op in rule.ops)
    todo = "take the transpose out" if turned else 'add {"op": "transpose"}'
    return Fault(
        "map-undeclared-transpose",
        rule.targets[0],
        f"rule {number} ({rule.sources[0]}) {why}; with the axes the other way round every shape fits: {todo}",
        keys,
        expected="no transpose" if turned else "transpose",
        observed="transpose" if turned else "no transpose",
        evidence=f"rules[{number}].ops",
    )


def _shapes(one: Step) -> str:
    return ", ".join(f"{key} {list(type_.shape)}" for key, type_ in list(one.out_types.items())[:3])
