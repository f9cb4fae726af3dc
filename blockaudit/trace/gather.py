"""What the ranks of one run found, put together: the same whether one process looked at every layer or several did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockaudit.records.conformance import SiteResult
from blockaudit.reference.assembly import Block
from blockaudit.trace.beside import Watch
from blockaudit.trace.diagnosis.diagnose import Diagnoser, Found
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.judge import Judge
from blockaudit.trace.measure import Measurer
from blockaudit.trace.ranks import Share

# What belongs to no layer comes after what does.
_LAST = 1 << 30


@dataclass
class Told:
    """What one rank found in one pass, of the layers that are its own."""

    results: list[SiteResult]
    solved: dict[tuple[str, int | None], list[Solved]]
    found: list[Found]
    unexplained: list[int | None]
    missing: list[str]
    unexpected: list[str]
    watched: Any


def gather(share: Share, judge: Judge, measurer: Measurer, diagnoser: Diagnoser, watch: Watch) -> None:
    """Tell the other ranks what this one found, and take over what they did. Raises RankLostError."""
    mine = Told(
        judge.results, measurer.solved, [_told(f) for f in diagnoser.found], diagnoser.unexplained,
        diagnoser.missing, diagnoser.unexpected, watch.told(),
    )  # fmt: skip
    every = share.exchange(mine)
    others = [told for rank, told in enumerate(every) if rank != share.rank]
    judge.results = [r for told in every for r in told.results]
    measurer.solved = _in_order([told.solved for told in every])
    diagnoser.found = _numbered([diagnoser.found, *(told.found for told in others)])
    diagnoser.unexplained = sorted((n for told in every for n in told.unexplained), key=_place)
    diagnoser.missing = [site for told in every for site in told.missing]
    diagnoser.unexpected = [site for told in every for site in told.unexpected]
    watch.hear([told.watched for told in others])


def _told(found: Found) -> Found:
    """An edit as others may know it: what it says, not how it is done."""
    return replace(found, edit=replace(found.edit, apply=_elsewhere))


def _elsewhere(_block: Block) -> Block:
    raise RuntimeError("an edit of another rank's layer")


def _in_order(
    every: Sequence[dict[tuple[str, int | None], list[Solved]]],
) -> dict[tuple[str, int | None], list[Solved]]:
    whole = {key: solved for part in every for key, solved in part.items()}
    return dict(sorted(whole.items(), key=lambda item: _place(item[0][1])))


def _numbered(every: Sequence[list[Found]]) -> list[Found]:
    """Edits by layer; those that only work together keep one number, of all ranks' counted anew."""
    whole = sorted(((_place(f.layer), rank, f) for rank, part in enumerate(every) for f in part), key=lambda t: t[:1])
    numbers: dict[tuple[int, int, int], int] = {}
    for place, rank, f in whole:
        if f.group:
            numbers.setdefault((place, rank, f.group), len(numbers) + 1)
    return [replace(f, group=numbers[place, rank, f.group] if f.group else 0) for place, rank, f in whole]


def _place(layer: int | None) -> int:
    return _LAST if layer is None else layer
