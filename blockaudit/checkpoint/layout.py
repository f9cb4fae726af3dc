"""Whether the tensors of one file lie in it as the format demands: in range, side by side, as long as shapes say."""

from __future__ import annotations

import math
from collections.abc import Iterable

from blockaudit.checkpoint.files import short
from blockaudit.records.checkpoint import DTYPE_BITS, MAX_RANK, Fault, TensorHeader

_U64 = 2**64

Entry = tuple[str, TensorHeader]


def _described(dtype: str, shape: tuple[int, ...]) -> tuple[int, str]:
    """Bytes that a dtype and a shape come to, or -1 and why there is no such number."""
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        return -1, f"has the unknown dtype {short(dtype, 40)!r}"
    if len(shape) > MAX_RANK:
        return -1, f"has {len(shape)} dimensions"
    if shape and (min(shape) < 0 or max(shape) >= _U64):
        return -1, f"has an impossible shape {list(shape)[:8]}"
    total = math.prod(shape) * bits
    if total >= _U64 * 8:
        return -1, f"has a shape {list(shape)[:8]} that no memory holds"
    if total % 8:
        return -1, f"of dtype {dtype} and shape {list(shape)[:8]} does not end on a whole byte"
    return total // 8, ""


class _Scan:
    """One pass over a file's tensors; remembers only what is wrong, and whether the file order is the byte order."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, tuple[int, ...]], tuple[int, str]] = {}
        self.end = 0
        self.contiguous = True
        self.bad: list[tuple[str, str]] = []
        self.mismatch: tuple[int, int] | None = None

    def run(self, entries: Iterable[Entry]) -> None:
        sizes = self.sizes
        position = 0
        for key, tensor in entries:
            start, stop = tensor.data_offsets
            kind = (tensor.dtype, tensor.shape)
            size = sizes.get(kind)
            if size is None:
                size = sizes[kind] = _described(*kind)
            if start == position and stop - start == size[0]:
                position = stop
            else:
                self._odd(key, tensor, size)
                self.contiguous = False
        self.end = position

    def _odd(self, key: str, tensor: TensorHeader, size: tuple[int, str]) -> None:
        """A tensor that is out of order, or wrong in itself."""
        start, stop = tensor.data_offsets
        if size[0] < 0:
            self.bad.append((key, size[1]))
        elif not 0 <= start <= stop < _U64:
            self.bad.append((key, f"has the impossible byte range {start}-{stop}"))
        elif stop - start != size[0]:
            kind = f"of dtype {tensor.dtype} and shape {list(tensor.shape)[:8]}"
            self.bad.append((key, f"{kind} needs {size[0]:,} bytes and has {stop - start:,}"))
            self.mismatch = self.mismatch or (size[0], stop - start)


def _possible(entries: Iterable[Entry]) -> list[tuple[int, int, str]]:
    """(start, stop, key) of every tensor that owns bytes, in byte order."""
    spans = [(*t.data_offsets, key) for key, t in entries if 0 <= t.data_offsets[0] < t.data_offsets[1]]
    spans.sort()
    return spans


class _Spans:
    """Neighbours in byte order: who overlaps whom, and which bytes nobody owns."""

    def __init__(self, spans: list[tuple[int, int, str]]) -> None:
        self.end = 0
        self.holes: list[tuple[int, int]] = []
        self.overlapping: dict[str, None] = {}
        self.first = ""
        owner = ""
        for start, stop, key in spans:
            if start < self.end:
                self.first = (
                    self.first or f"{short(key)} starts at byte {start:,}, where {short(owner)} reaches to {self.end:,}"
                )
                self.overlapping[owner] = self.overlapping[key] = None
            elif start > self.end:
                self.holes.append((self.end, start))
            if stop > self.end:
                self.end, owner = stop, key


def _plural(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count:,} tensors"


def _shape_faults(scan: _Scan, file: str) -> list[Fault]:
    if not scan.bad:
        return []
    key, why = scan.bad[0]
    more = f" (and {_plural(len(scan.bad) - 1)} more)" if len(scan.bad) > 1 else ""
    need, have = scan.mismatch or (None, None)
    return [
        Fault(
            "corrupt-header",
            file,
            f"the header contradicts itself: {short(key)} {why}{more}",
            tuple(k for k, _ in scan.bad),
            expected=need,
            observed=have,
        )
    ]


def _end_fault(file: str, data_size: int, end: int, beyond: list[str], data_start: int) -> Fault:
    need, have = data_start + end, data_start + data_size
    return Fault(
        "truncated-file",
        file,
        f"the file ends early: the header describes {need:,} bytes, the file has {have:,} ({need - have:,} missing)",
        tuple(beyond),
        expected=need,
        observed=have,
    )


def _gap_fault(file: str, holes: list[tuple[int, int]]) -> Fault:
    lost = sum(stop - start for start, stop in holes)
    places = ", ".join(f"{start:,}-{stop:,}" for start, stop in holes[:3]) + (", ..." if len(holes) > 3 else "")
    return Fault(
        "header-gap",
        file,
        f"{lost:,} bytes of the data section belong to no tensor (at {places})",
        expected=0,
        observed=lost,
        evidence=f"{len(holes)} range{'s' if len(holes) != 1 else ''}, counted from the start of the data section",
    )


def check_layout(entries: list[Entry], file: str, data_start: int, data_size: int) -> list[Fault]:
    """Faults of the layout of one safetensors file, whose `data_size` bytes of data start at byte `data_start`."""
    scan = _Scan()
    scan.run(entries)
    if scan.contiguous and scan.end == data_size:
        return []
    return _shape_faults(scan, file) + check_spans(entries, file, data_start, data_size)


def check_spans(entries: list[Entry], file: str, data_start: int, data_size: int) -> list[Fault]:
    """Faults of the byte ranges alone: tensors that overlap, reach past the end, or leave bytes to nobody."""
    faults: list[Fault] = []
    spans = _Spans(_possible(entries))
    if spans.overlapping:
        keys = tuple(spans.overlapping)
        faults.append(Fault("overlapping-tensors", file, f"{_plural(len(keys))} share bytes: {spans.first}", keys))
    if spans.end > data_size:
        beyond = [key for key, t in entries if t.data_offsets[1] > data_size]
        faults.append(_end_fault(file, data_size, spans.end, beyond, data_start))
    holes = list(spans.holes)
    if spans.end < data_size:
        holes.append((spans.end, data_size))
    if holes:
        faults.append(_gap_fault(file, holes))
    return faults
