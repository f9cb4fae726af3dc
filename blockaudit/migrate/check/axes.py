"""Which axis of a matrix is the output: declared by the two manifests, or by what the other shapes prove."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.migrate.check.pairs import Flow, flows
from blockaudit.migrate.sides import Slot
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault
from blockaudit.records.operations import Transpose


def axes(work: Work) -> Iterator[Fault]:
    """`map-undeclared-transpose`: a matrix that would be read the other way round, or that nobody speaks for."""
    found = [flow for flow in flows(work) if _is_matrix(flow)]
    # What the blocks' matrices with two different sizes prove of the source's own convention. (A head has the axes of
    # the table that it may be tied to, whatever the blocks do: GPT-2.)
    proved = {_turned(flow) for flow in found if _decided(flow)}
    for flow in found:
        needed = _needed(flow)
        if needed is not None:
            if needed != _turned(flow):
                yield _wrong(flow, needed)
        elif _square(flow) and not _turned(flow) and "axes" not in flow.rule.keeps and proved != {False}:
            yield _undecided(flow, proved)


def _is_matrix(flow: Flow) -> bool:
    """A linear map's weight in the target. Tables that are looked up are rows by their index on both sides."""
    slot = flow.targets[0]
    return slot is not None and slot.expected.what != "embedding" and len(_shape(flow)) == 2


def _shape(flow: Flow) -> tuple[int, ...]:
    return flow.step.out_types[flow.step.targets[0].values[0]].shape


def _square(flow: Flow) -> bool:
    """Whether the shape cannot say which axis is which: of a fused tensor, any of its parts."""
    types = {**flow.step.in_types, **flow.step.out_types}
    return any(len(t.shape) == 2 and t.shape[0] == t.shape[1] for t in types.values())


def _decided(flow: Flow) -> bool:
    slot = flow.targets[0]
    return (
        slot is not None
        and slot.expected.what == "branch"
        and not _square(flow)
        and _shape(flow) == slot.expected.shape
    )


def _turned(flow: Flow) -> bool:
    """Whether an odd number of transposes stands on the way."""
    return sum(isinstance(op, Transpose) for op in flow.reaching(0)) % 2 == 1


def _needed(flow: Flow) -> bool | None:
    """Whether the manifests say that the axes change places; None where the source's manifest does not speak."""
    source, target = flow.sources[0], flow.targets[0]
    if source is not None and target is not None:
        return source.expected.layout != target.expected.layout
    return None


def _wrong(flow: Flow, needed: bool) -> Fault:
    source: Slot | None = flow.sources[0]
    target = flow.targets[0]
    layouts = (source.expected.layout if source else "", target.expected.layout if target else "")
    said = (
        f"stores {layouts[0]} in the source and {layouts[1]} in the target, and no transpose is declared"
        if needed
        else "is laid out alike on both sides, and a transpose is declared"
    )
    return Fault(
        "map-undeclared-transpose",
        flow.example,
        f"rule {flow.number}: {flow.example} {said}"
        + (": its shape is square, so that no error would show" if _square(flow) else ""),
        flow.step.outputs,
        expected="transpose" if needed else "no transpose",
        observed="no transpose" if needed else "transpose",
        evidence=f"rules[{flow.number}].ops",
    )


def _undecided(flow: Flow, proved: set[bool]) -> Fault:
    others = (
        "the matrices whose shapes decide it are transposed"
        if proved == {True}
        else "the matrices whose shapes decide it do not agree"
        if proved
        else "no other shape in the map decides it"
    )
    return Fault(
        "map-undeclared-transpose",
        flow.example,
        f"rule {flow.number}: {flow.example} is square, its shape cannot say which axis is the output, and {others}: "
        'declare {"op": "transpose"}, or "keeps": ["axes"]',
        flow.step.outputs,
        expected='{"op": "transpose"} or "keeps": ["axes"]',
        observed="neither",
        evidence=f"rules[{flow.number}]",
    )
