"""What a map means without saying it: the one axis that a rule has on one side alone, the rules of carried buffers."""

from __future__ import annotations

from msgspec.structs import replace

from blockaudit.migrate import templates
from blockaudit.records.migration import MigrationMap, MoveRule
from blockaudit.records.operations import Concat, Operation, Replicated, Split, Stack, Unstack


def with_axes(map_: MigrationMap) -> MigrationMap:
    """The map with every such axis named; ranks are never implied."""
    return replace(map_, rules=[_rule(rule) for rule in map_.rules])


def with_buffers(map_: MigrationMap) -> MigrationMap:
    """The map with a rule for each buffer that it carries under its own name."""
    carried = [MoveRule(from_=b.key, to=b.key, optional=True) for b in map_.buffers if b.do == "carry"]
    return replace(map_, rules=[*map_.rules, *carried]) if carried else map_


def _rule(rule: MoveRule) -> MoveRule:
    taken = {a for t in rule.sources for a in templates.axes(t)} - {"*"}
    given = {a for t in rule.targets for a in templates.axes(t)} - {"*"}
    closing, opening = taken - given - _named(rule), given - taken - _named(rule)
    if len(closing) != 1 and len(opening) != 1:
        return rule
    ops: list[Operation] = []
    for op in rule.ops:
        # A concat of several templates joins those; of one, what its axis runs over.
        if isinstance(op, Stack | Concat) and op.axis is None and len(closing) == 1:
            ops.append(replace(op, axis=closing.pop()) if isinstance(op, Stack) or len(rule.sources) == 1 else op)
        elif isinstance(op, Unstack | Split) and op.axis is None and len(opening) == 1:
            ops.append(replace(op, axis=opening.pop()) if isinstance(op, Unstack) or len(rule.targets) == 1 else op)
        else:
            ops.append(op)
    return replace(rule, ops=ops)


def _named(rule: MoveRule) -> set[str]:
    """Axes that operations of the rule name."""
    spreading = [op for op in rule.ops if isinstance(op, Concat | Replicated | Split | Stack | Unstack)]
    return {op.axis for op in spreading if op.axis is not None}
