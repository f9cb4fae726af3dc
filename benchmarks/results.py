"""The figures: a table for the terminal and for RESULTS.md, and whether every limit is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST_RATIO = 2.5
MOST_MEGABYTES = 300


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: what ran, against which floor, and its limits."""

    what: str
    milliseconds: float
    floor: str
    floor_milliseconds: float
    ratio: float
    megabytes: float

    @property
    def kept(self) -> bool:
        return self.ratio <= LARGEST_RATIO and self.megabytes < MOST_MEGABYTES


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    head = ["command", "ms", "floor", "floor ms", "ratio", "peak MB", "kept"]
    body = [
        [
            row.what,
            f"{row.milliseconds:.0f}",
            row.floor,
            f"{row.floor_milliseconds:.0f}",
            f"{row.ratio:.2f}",
            f"{row.megabytes:.0f}",
            "yes" if row.kept else "NO",
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *body]
    return "\n".join(f"| {' | '.join(t.ljust(w) for t, w in zip(line, widths, strict=True))} |" for line in lines)


def document(rows: Sequence[Row], checks: Sequence[str], rounds: int) -> str:
    """RESULTS.md."""
    return f"""# What `make bench` measured

A machine of 2 cores. Medians of {rounds} runs after one that is not counted; the commands of a comparison run in turn,
and the ratio is the median of the ratios within a round. Nothing is kept between runs but compiled modules.
Limits: ratio at most {LARGEST_RATIO}, peak memory under {MOST_MEGABYTES} MB.

- DeepSeek-V3: its real shapes in FP8 with block scales, 91,991 tensors in 164 shards, 689 GB (sparse files).
- LLaMA-3-70B: its real shapes in BF16, 723 tensors in 30 shards, 141 GB (sparse files).
- headers: a bare Python process that opens the index and every shard, reads every header and parses it all.
- Typer: a Typer command that does nothing.

{table(rows)}

Before the clock starts both large checkpoints must be accepted, and every planted fault must be named, to the last
tensor, and nothing else with it:

{chr(10).join(f"- {check}" for check in checks)}
"""
