"""The figures: a table for the terminal and for RESULTS.md, and whether every limit is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST_RATIO = 2.5
MOST_MEGABYTES = 300
# The graph level, by the time of what has to be imported and built; and from the cache, by the headers level.
GRAPH_RATIO = 1.5
GRAPH_MEGABYTES = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: what ran, against which floor, and its limits."""

    what: str
    milliseconds: float
    floor: str
    floor_milliseconds: float
    ratio: float
    megabytes: float
    largest_ratio: float = LARGEST_RATIO
    most_megabytes: float = MOST_MEGABYTES

    @property
    def kept(self) -> bool:
        return self.ratio <= self.largest_ratio and self.megabytes < self.most_megabytes


@dataclass(frozen=True, slots=True)
class Cost:
    """One row: median seconds by the clock and of the processor; the median ratio of the latter to both forward passes.

    The passes of the same round, where it has several.
    """

    what: str
    dtype: str
    seconds: float
    processor: float
    ratio: float
    limit: float | None = None

    @property
    def kept(self) -> bool:
        return self.limit is None or self.ratio <= self.limit


@dataclass(frozen=True, slots=True)
class Speed:
    """One row: median seconds of both, the median ratio of a round, and its limit: the least or the most."""

    what: str
    seconds: float
    floor: str
    floor_seconds: float
    ratio: float
    limit: float | None
    least: bool

    @property
    def kept(self) -> bool:
        return self.limit is None or (self.ratio >= self.limit if self.least else self.ratio <= self.limit)


def speeds(rows: Sequence[Speed]) -> str:
    """A Markdown table."""
    head = ["what", "seconds", "floor", "floor seconds", "ratio", "limit", "kept"]
    body = [
        [
            row.what,
            f"{row.seconds:.1f}",
            row.floor,
            f"{row.floor_seconds:.1f}",
            f"{row.ratio:.2f}",
            "" if row.limit is None else f"{'>=' if row.least else '<='} {row.limit}",
            "" if row.limit is None else "yes" if row.kept else "NO",
        ]
        for row in rows
    ]
    return _markdown(head, body)


def costs(rows: Sequence[Cost]) -> str:
    """A Markdown table."""
    head = ["what", "dtype", "seconds", "processor seconds", "ratio", "limit", "kept"]
    body = [
        [
            row.what,
            row.dtype,
            f"{row.seconds:.1f}",
            f"{row.processor:.1f}",
            f"{row.ratio:.2f}",
            "" if row.limit is None else f"{row.limit:.1f}",
            "" if row.limit is None else "yes" if row.kept else "NO",
        ]
        for row in rows
    ]
    return _markdown(head, body)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    head = ["command", "ms", "floor", "floor ms", "ratio", "limit", "peak MB", "kept"]
    body = [
        [
            row.what,
            f"{row.milliseconds:.0f}",
            row.floor,
            f"{row.floor_milliseconds:.0f}",
            f"{row.ratio:.2f}",
            f"{row.largest_ratio:.1f}",
            f"{row.megabytes:.0f}",
            "yes" if row.kept else "NO",
        ]
        for row in rows
    ]
    return _markdown(head, body)


def _markdown(head: list[str], body: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *body]
    return "\n".join(f"| {' | '.join(t.ljust(w) for t, w in zip(line, widths, strict=True))} |" for line in lines)


def document(
    rows: Sequence[Row], compared: Sequence[Cost], converted: Sequence[Speed], checks: Sequence[str], rounds: int
) -> str:
    """RESULTS.md."""
    return f"""# What `make bench` measured

A machine of 2 cores. Medians of {rounds} runs after one that is not counted; the commands of a comparison run in turn,
and the ratio is the median of the ratios within a round. Nothing is kept between runs but compiled modules.
Limits: ratio at most {LARGEST_RATIO}, peak memory under {MOST_MEGABYTES} MB; at graph level {GRAPH_RATIO}, and under
{GRAPH_MEGABYTES} MB.

- DeepSeek-V3: its real shapes in FP8 with block scales, 91,991 tensors in 164 shards, 689 GB (sparse files).
- LLaMA-3-70B: its real shapes in BF16, 723 tensors in 30 shards, 141 GB (sparse files).
- headers: a bare Python process that opens the index and every shard, reads every header and parses it all.
- Typer: a Typer command that does nothing.
- meta build: a bare Python process that imports torch and transformers and builds the class on the meta device.
- cold: nothing is kept from an earlier audit (`BLOCKAUDIT_CACHE=off`); warm: the same architecture was read before.

{table(rows)}

`blockaudit conform` on a LLaMA of 16 layers, d = 1024, d_ff = 2816, 16 heads and 32,000 tokens; 8 x 256 tokens, one
thread. Ratios are of processor seconds, by those of the two forward passes alone in the same round: the Hugging Face
class (eager attention) in the dtype, and the reference decoder in float32, both with their weights in memory. A pass
reads the weights from the file, runs both, measures the noise and judges every site. `conform` is the whole command: it
builds and records the class, compares padded rows as well, and of a bfloat16 model runs the float32 one besides.

{costs(compared)}

`blockaudit convert` of a LLaMA of 3.8 GB in one file, by a map that only takes a prefix off. Without hashes: the
throughput by that of `cp` and `sync` of the same folder. With them: the time by that of hashlib's SHA-256 over the
weights in and out on all cores, both with nothing of the files in memory, and (for comparison) both with all of it.

{speeds(converted)}

Before the clock starts both large checkpoints must be accepted, and every planted fault must be named, to the last
tensor, and nothing else with it:

{chr(10).join(f"- {check}" for check in checks)}
"""
