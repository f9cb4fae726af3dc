"""A tensor that lies in several boxes: any range of its bytes, read from the files that hold parts of it.

A box is written row by row: along the axes that it fills, its elements are side by side in the tensor too. Such a run
is the unit here, and runs that follow each other in a box follow each other in its file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from math import prod

import msgspec

Shape = tuple[int, ...]
# Fills a view with the bytes of a file from an offset on.
ReadAt = Callable[[str, int, memoryview], None]
# Bytes that are read at a time where runs are short, and held beside what is asked for.
WINDOW = 4 << 20


class Box(msgspec.Struct, frozen=True):
    """A part of a tensor, and where its bytes lie, row-major and without holes: in `path` from `offset` on.

    first: the first byte of the box in the tensor; last: behind its last. run: the bytes of one run. counts and steps,
    for every axis outside a run: the places that the box has along it, and the tensor's bytes from one to the next.
    """

    path: str
    offset: int
    first: int
    last: int
    run: int
    counts: Shape
    steps: Shape

    @property
    def runs(self) -> int:
        return prod(self.counts)

    def at(self, number: int) -> int:
        """The first byte of a run in the tensor."""
        place = self.first
        for count, step in zip(reversed(self.counts), reversed(self.steps), strict=True):
            number, index = divmod(number, count)
            place += index * step
        return place


def box(path: str, offset: int, starts: Shape, sizes: Shape, shape: Shape, width: int) -> Box:
    """The box of `sizes` that begins at `starts` in a tensor of `shape`, whose elements have `width` bytes.

    No size may be 0, and the box lies inside the tensor.
    """
    steps = [width * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    # The axes behind this one are filled, so that what lies along it is one run.
    inner = max((axis for axis in range(1, len(shape)) if sizes[axis] != shape[axis]), default=0)
    first = sum(start * step for start, step in zip(starts, steps, strict=True))
    last = first + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) + width
    run = sizes[inner] * steps[inner] if shape else width
    return Box(path, offset, first, last, run, sizes[:inner], tuple(steps[:inner]))


def within(boxes: Sequence[Box], start: int, nbytes: int) -> tuple[str, int] | None:
    """The file and the first byte in it, where bytes of the tensor lie side by side in one box; else None."""
    for one in boxes:
        if one.first <= start < one.last:
            number = max(0, bisect_right(range(one.runs), start, key=one.at) - 1)
            skipped = start - one.at(number)
            if skipped + nbytes <= one.run:
                return one.path, one.offset + number * one.run + skipped
    return None


def gather(boxes: Sequence[Box], start: int, view: memoryview, read: ReadAt) -> None:
    """Fill `view` with the bytes of the tensor from `start` on. The boxes make it up whole, and none meets another."""
    for begin in range(0, len(view), WINDOW):
        part = view[begin : begin + WINDOW]
        for one in boxes:
            if one.first < start + begin + len(part) and one.last > start + begin:
                _fill(one, start + begin, part, read)


def _fill(one: Box, start: int, view: memoryview, read: ReadAt) -> None:
    """What a box holds of the bytes from `start` on."""
    stop = start + len(view)
    low = max(0, bisect_right(range(one.runs), start, key=one.at) - 1)
    low += one.at(low) + one.run <= start
    high = bisect_left(range(one.runs), stop, key=one.at)
    if low >= high:
        return
    skipped = max(0, start - one.at(low))
    count = (high - low) * one.run - skipped - max(0, one.at(high - 1) + one.run - stop)
    offset = one.offset + low * one.run + skipped
    if high - low == 1:
        at = one.at(low) + skipped - start
        read(one.path, offset, view[at : at + count])
        return
    held = memoryview(bytearray(count))
    read(one.path, offset, held)
    done = 0
    for number in range(low, high):
        at = one.at(number) - start
        begin, end = max(at, 0), min(at + one.run, len(view))
        view[begin:end] = held[done : done + end - begin]
        done += end - begin
