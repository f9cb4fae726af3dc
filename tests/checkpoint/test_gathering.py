"""Any range of a tensor, out of boxes in several files: held to what NumPy cuts and joins."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from blockaudit.checkpoint import gathering
from blockaudit.checkpoint.gathering import Box, box, gather
from blockaudit.checkpoint.ranges import Gathered, OpenFiles

Whole = NDArray[np.generic]


def cut(whole: Whole, places: tuple[tuple[int, ...], ...], folder: Path) -> list[Box]:
    """Write the boxes of a tensor, cut along each axis at some places, each behind five bytes that are not its own."""
    spans = [tuple(pairwise((0, *at, size))) for at, size in zip(places, whole.shape, strict=True)]
    boxes: list[Box] = []
    for number, ends in enumerate(product(*spans)):
        path = folder / f"{number}.bin"
        path.write_bytes(b"front" + whole[tuple(slice(a, b) for a, b in ends)].tobytes() + b"behind")
        starts, sizes = tuple(a for a, _ in ends), tuple(b - a for a, b in ends)
        boxes.append(box(str(path), 5, starts, sizes, whole.shape, whole.itemsize))
    return boxes


def opened(boxes: list[Box]) -> OpenFiles:
    return OpenFiles(tuple(one.path for one in boxes))


@pytest.mark.parametrize(
    ("shape", "places"),
    [
        ((), ()),
        ((7,), ((),)),
        ((9,), ((2, 3),)),
        ((6, 5), ((), (2,))),
        ((6, 5), ((1, 4), ())),
        ((6, 5), ((3,), (1, 2, 3, 4))),
        ((3, 4, 5), ((1, 2), (2,), ())),
        ((3, 4, 5), ((), (1,), (3,))),
        ((2, 3, 1), ((1,), (1, 2), ())),
        ((2, 1, 3, 4), ((1,), (), (2,), ())),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
@pytest.mark.parametrize("window", [1, 7, 1 << 20])
def test_every_range(
    shape: tuple[int, ...], places: tuple[tuple[int, ...], ...], dtype: type[np.generic], window: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(gathering, "WINDOW", window)
    whole = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float64).reshape(shape).astype(dtype)
    boxes, data = cut(whole, places, tmp_path), whole.tobytes()
    files = opened(boxes)
    step = max(1, len(data) // 5)
    for start in range(0, len(data), step):
        for stop in range(start + 1, len(data) + 1, step):
            view = memoryview(bytearray(stop - start))
            gather(boxes, start, view, files.read_at)
            assert bytes(view) == data[start:stop]
    files.close()


def test_what_lies_in_one_run_is_a_range_of_its_file(tmp_path: Path) -> None:
    whole = np.arange(4 * 3 * 2, dtype=np.int16).reshape(4, 3, 2)
    boxes = cut(whole, ((1, 2, 3), (), ()), tmp_path)
    span = Gathered(boxes[0].path, boxes[0].offset, whole.nbytes, boxes=tuple(boxes))
    layer = span.part(2 * 12, 12).alone()
    assert not isinstance(layer, Gathered)
    assert (layer.path, layer.offset, layer.nbytes) == (boxes[2].path, 5, 12)


def test_no_more_boxes_than_are_touched(tmp_path: Path) -> None:
    whole = np.arange(4 * 6, dtype=np.int16).reshape(4, 6)
    boxes = cut(whole, ((1, 2, 3), (2,)), tmp_path)
    files = opened(boxes)
    layer = Gathered(boxes[0].path, 5, whole.nbytes, boxes=tuple(boxes)).part(12, 12).alone()
    assert isinstance(layer, Gathered)
    assert layer.boxes == tuple(boxes[2:4])
    view = memoryview(bytearray(12))
    files.read_into(layer, view)
    assert bytes(view) == whole[1].tobytes()
    files.close()
