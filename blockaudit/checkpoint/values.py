"""Reading tensor bytes by position: small vectors as statistics, large tensors in blocks, never a whole file.

Every function answers None (or an empty answer) where the bytes cannot be read: that the file is short or the header
wrong is already a fault of the checkpoint. That it is no longer the file whose header was read shows only here, and
`changed` tells it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import msgspec

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.decode import DECODERS, Numbers
from blockaudit.checkpoint.files import PositionedFile, open_file, reason
from blockaudit.records.checkpoint import DTYPE_BITS, Checkpoint, Fault, FileHeader, TensorHeader

# Elements of the longest vector that read_vector decodes.
VECTOR_LIMIT = 1 << 20
CHUNK = 4 << 20
BLOCK = 4096
BLOCKS = 16
_OPEN_FILES = 32


class VectorStats(msgspec.Struct, frozen=True):
    """Statistics of one tensor. mean, minimum and maximum are of its finite values, NaN where it has none.

    `count` is in elements; `constant` says that all elements are equal bit by bit; `digest` is a SHA-256 of the bytes.
    """

    mean: float
    minimum: float
    maximum: float
    non_finite: int
    count: int
    constant: bool
    digest: bytes


# Open files by path.
_open: OrderedDict[str, PositionedFile] = OrderedDict()
# Files whose bytes are not read any more, by path: since their headers were read they have become something else.
_changed: dict[str, str] = {}
_REPLACED = "was replaced or written to after its header was read, so that its numbers lie nobody knows where"
_GONE = "cannot be read any more, and could when its header was: {}"


def close_files() -> None:
    """Close the files that are kept open between reads, and the connections to hubs."""
    while _open:
        _open.popitem()[1].close()
    _changed.clear()
    storage.close()


def changed(ckpt: Checkpoint) -> tuple[Fault, ...]:
    """Files of this machine that have changed between the reading of their header and that of their numbers."""
    return tuple(
        Fault("unreadable-file", file.name, f"the file {why}: audit it again when nothing writes to it")
        for file in ckpt.files
        if (why := _changed.get(file.path))
    )


def _opened(of: FileHeader) -> PositionedFile:
    """The file that a header was read from, open and kept for the next read. Raises OSError where it is another now."""
    try:
        file = _current(of.path)
    except OSError as error:
        if of.identity is not None and not storage.is_remote(of.path):
            _changed[of.path] = _GONE.format(reason(error))
        raise
    # What was opened is asked, and not what the path names: that may be a third file by now.
    if of.identity is not None and file.identity != of.identity:
        _changed[of.path] = _REPLACED
        raise OSError("not the file that its header was read from")
    return file


def _current(path: str) -> PositionedFile:
    """What the path names now, open. Raises OSError."""
    known = _open.get(path)
    if known is not None and known.identity == storage.identity(path):
        _open.move_to_end(path)
        return known
    if known is not None:
        _open.pop(path).close()
    file = _open[path] = open_file(path)
    if len(_open) > _OPEN_FILES:
        _open.popitem(last=False)[1].close()
    return file


def _sound(tensor: TensorHeader, size: int, data_start: int) -> bool:
    """Whether the byte range lies in the file."""
    start, stop = tensor.data_offsets
    return 0 <= start <= stop <= size - data_start


def read_block(ckpt: Checkpoint, key: str, start: int, length: int) -> bytes:
    """Bytes start to start + length of a tensor, clipped to it; empty where they cannot be read."""
    span = _span(ckpt, key, start, length)
    if span is None:
        return b""
    _, offset, length = span
    try:
        data = _opened(ckpt.owner[key]).read_at(length, offset)
    except OSError:
        return b""
    return data if len(data) == length else b""


def read_into(ckpt: Checkpoint, key: str, start: int, view: memoryview) -> int:
    """Fill `view` with the bytes of a tensor from `start` on. Returns how many: 0 where they cannot be read."""
    tensor, file = ckpt.tensors[key], ckpt.owner[key]
    if not 0 <= start <= start + len(view) <= tensor.nbytes or not _sound(tensor, file.size, file.data_start):
        return 0
    try:
        return _opened(file).read_into(view, file.data_start + tensor.data_offsets[0] + start)
    except OSError:
        return 0


def chunks(ckpt: Checkpoint, key: str, size: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a tensor in order, `size` at a time; ends early where they cannot be read."""
    for start in range(0, ckpt.tensors[key].nbytes, size):
        data = read_block(ckpt, key, start, size)
        if not data:
            return
        yield data


def _mean(values: Numbers) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # float64 values whose sum is none
        return math.fsum(v / len(values) for v in values)


def _summary(values: Numbers, extremes: bool) -> tuple[float, float, float, int]:
    """Mean, minimum and maximum of the finite values, and the count of the others."""
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):  # too large, or infinities of both signs
        total = math.nan
    # NaN and infinity survive a sum: a finite one means that every value is finite.
    whole = math.isfinite(total)
    finite = values if whole else [v for v in values if math.isfinite(v)]
    if not finite:
        return math.nan, math.nan, math.nan, len(values)
    mean = total / len(values) if whole else _mean(finite)
    low, high = (float(min(finite)), float(max(finite))) if extremes else (math.nan, math.nan)
    return mean, low, high, len(values) - len(finite)


def read_vector(ckpt: Checkpoint, key: str, limit: int = VECTOR_LIMIT, *, extremes: bool = True) -> VectorStats | None:
    """Statistics of a tensor of any shape with at most `limit` elements.

    Without `extremes`, minimum and maximum are NaN: they take as long as all the rest.
    None where it is empty, longer, of a dtype that is not decoded (eight bit floats), strided, or not readable.
    """
    tensor = ckpt.tensors[key]
    decode = DECODERS.get(tensor.dtype)
    count = math.prod(tensor.shape)
    if decode is None or not 0 < count <= limit or count * DTYPE_BITS[tensor.dtype] != 8 * tensor.nbytes:
        return None
    raw = read_block(ckpt, key, 0, tensor.nbytes)
    if not raw or key in ckpt.owner[key].strided:
        return None
    from hashlib import sha256  # costs 5 ms at import

    mean, low, high, others = _summary(decode(raw), extremes)
    width = tensor.nbytes // count
    constant = raw[:-width] == raw[width:]
    return VectorStats(mean, low, high, others, count, constant, sha256(raw).digest())


def fetch_ahead(ckpt: Checkpoint, keys: Iterable[str], limit: int = VECTOR_LIMIT) -> None:
    """Say which tensors `read_vector` is going to be asked for: what lies on a hub is fetched at once."""
    if storage.is_remote(ckpt.folder):
        small = (key for key in keys if 0 < ckpt.tensors[key].elements <= limit)
        storage.fetch_ahead([span for key in small if (span := _span(ckpt, key, 0, ckpt.tensors[key].nbytes))])


def _span(ckpt: Checkpoint, key: str, start: int, length: int) -> storage.Span | None:
    """The bytes that `read_block` reads; None where it reads none."""
    tensor, file = ckpt.tensors[key], ckpt.owner[key]
    length = min(length, tensor.nbytes - start)
    if start < 0 or length <= 0 or not _sound(tensor, file.size, file.data_start):
        return None
    return file.path, file.data_start + tensor.data_offsets[0] + start, length


def located(ckpt: Checkpoint, key: str) -> bool:
    """Whether the bytes of a tensor can be read: of a distributed checkpoint those of short vectors are found alone."""
    return ckpt.owner[key].container != "torch-distributed" or key not in ckpt.owner[key].strided


def _alike(ckpt: Checkpoint, a: str, b: str) -> bool:
    """Same dtype, shape and length, and both stored in order."""
    x, y = ckpt.tensors[a], ckpt.tensors[b]
    strided = a in ckpt.owner[a].strided or b in ckpt.owner[b].strided
    return (x.dtype, x.shape, x.nbytes) == (y.dtype, y.shape, y.nbytes) and not strided


def same_bytes(ckpt: Checkpoint, a: str, b: str) -> bool:
    """Whether two keys name one range of one file, so that they are equal unread."""
    same_file = ckpt.owner[a].path == ckpt.owner[b].path
    x, y = ckpt.tensors[a], ckpt.tensors[b]
    return same_file and (x.dtype, x.shape, x.data_offsets) == (y.dtype, y.shape, y.data_offsets)


def _equal_at(ckpt: Checkpoint, a: str, b: str, start: int, length: int) -> bool:
    one = read_block(ckpt, a, start, length)
    return bool(one) and one == read_block(ckpt, b, start, length)


def sampled_equal(ckpt: Checkpoint, a: str, b: str) -> bool:
    """Whether two tensors agree in dtype, shape and up to 16 evenly spaced blocks of 4 KiB, first and last included.

    False where a block cannot be read. Tensors of one storage are equal unread.
    """
    if same_bytes(ckpt, a, b):
        return True
    if not _alike(ckpt, a, b):
        return False
    last = max(0, ckpt.tensors[a].nbytes - BLOCK)
    starts = sorted({last * i // (BLOCKS - 1) for i in range(BLOCKS)})
    if storage.is_remote(ckpt.folder):
        storage.fetch_ahead([s for key in (a, b) for start in starts if (s := _span(ckpt, key, start, BLOCK))])
    return ckpt.tensors[a].nbytes == 0 or all(_equal_at(ckpt, a, b, start, BLOCK) for start in starts)


def equal(ckpt: Checkpoint, a: str, b: str) -> bool:
    """Whether two tensors agree in dtype, shape and every byte; False where they cannot be read."""
    if same_bytes(ckpt, a, b):
        return True
    return _alike(ckpt, a, b) and all(
        _equal_at(ckpt, a, b, start, CHUNK) for start in range(0, ckpt.tensors[a].nbytes, CHUNK)
    )
