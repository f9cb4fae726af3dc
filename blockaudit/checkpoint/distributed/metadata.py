"""`.metadata` of a torch.distributed checkpoint: tensors, the chunks they are cut into, and where each chunk lies."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import closing
from math import prod
from typing import Any, cast

import msgspec

from blockaudit.checkpoint.files import open_file
from blockaudit.checkpoint.pickle_machine import Described, Machine
from blockaudit.checkpoint.refusal import RefusedError, malformed, printable
from blockaudit.checkpoint.torch_words import Global
from blockaudit.records.checkpoint import DTYPE_BITS

# 100,000 chunks take 30 MB.
_MAX_METADATA = 128 << 20
_MAX_CHUNKS = 200_000
# torch makes no tensor of more dimensions.
_MAX_RANK = 64

Shape = tuple[int, ...]


class Place(msgspec.Struct, frozen=True):
    """Where one chunk is stored: a file beside the metadata, and which bytes; `plain` where they are not packed."""

    file: str
    start: int
    length: int
    plain: bool = True


class Chunk(msgspec.Struct, frozen=True):
    """A box of a tensor, and where it is stored; None where nothing says."""

    offsets: Shape
    sizes: Shape
    place: Place | None


class Tensor(msgspec.Struct, frozen=True):
    """One tensor as the metadata describes it."""

    dtype: str
    shape: Shape
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class Metadata(msgspec.Struct, frozen=True):
    """All tensors by key, the keys of everything else, and the path of each key in the nested dictionary saved."""

    tensors: dict[str, Tensor]
    others: tuple[str, ...]
    paths: dict[str, tuple[str, ...]]


def read_metadata(path: str) -> Metadata:
    """Read the file at `path` without unpickling anything. Raises RefusedError and OSError."""
    from blockaudit.checkpoint.distributed.words import DistributedWords

    with closing(open_file(path)) as file:
        if file.size > _MAX_METADATA:
            raise RefusedError("unreadable-file", f"it has {file.size:,} bytes; at most {_MAX_METADATA:,} are read")
        if file.size == 0:
            raise RefusedError("truncated-file", "the file is empty", observed=0)
        root = Machine(DistributedWords()).run(io.BytesIO(file.read_at(file.size, 0)))
    if not isinstance(root, Described) or root.name != "Metadata":
        raise RefusedError("unreadable-file", "it is a pickle, and not the metadata of a torch.distributed checkpoint")
    try:
        return _metadata(root)
    except (TypeError, ValueError) as error:
        raise malformed(str(error)[:120]) from error


def _metadata(root: Described) -> Metadata:
    entries = _dict(root.get("state_dict_metadata"), "state_dict_metadata")
    places = dict(_places(root.get("storage_data")))
    tensors: dict[str, Tensor] = {}
    others: list[str] = []
    chunks = 0
    for key, entry in entries.items():
        if not isinstance(key, str) or not isinstance(entry, Described):
            raise malformed("state_dict_metadata holds what is no entry")
        name = _text(key)
        if entry.name == "TensorStorageMetadata":
            # One list may be that of many tensors: it is counted before it is copied.
            chunks += len(cast("list[Any]", entry.get("chunks"))) if isinstance(entry.get("chunks"), list) else 0
            if chunks > _MAX_CHUNKS:
                raise RefusedError("unreadable-file", f"it describes more than {_MAX_CHUNKS:,} chunks")
            tensors[name] = _tensor(name, entry, places)
        else:
            others.append(name)
    return Metadata(tensors, tuple(others), dict(_paths(root.get("planner_data"))))


def _text(key: str) -> str:
    try:
        key.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RefusedError("corrupt-header", f"the name {printable(key)} is not valid text") from error
    return key


def _dict(value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise malformed(f"{what} is no dictionary")
    return cast("dict[Any, Any]", value)


def _shape(value: Any, what: str) -> Shape:
    if not isinstance(value, tuple):
        raise malformed(f"{what} is no size")
    numbers = cast("tuple[Any, ...]", value)
    if len(numbers) > _MAX_RANK or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise malformed(f"{what} is no size")
    return numbers


def _tensor(key: str, entry: Described, places: dict[tuple[str, Shape], Place]) -> Tensor:
    shape = _shape(entry.get("size"), f"the size of {printable(key)[:80]}")
    listed = entry.get("chunks")
    if not isinstance(listed, list):
        raise malformed(f"{printable(key)[:80]} has no list of chunks")
    chunks: list[Chunk] = []
    for chunk in cast("list[Any]", listed):
        if not isinstance(chunk, Described):
            raise malformed(f"{printable(key)[:80]} has a chunk that is none")
        offsets = _shape(chunk.get("offsets"), "the offset of a chunk")
        place = places.get((key, offsets))
        chunks.append(Chunk(offsets, _shape(chunk.get("sizes"), "the size of a chunk"), place))
    dtype = _dtype(entry.get("properties"))
    if not dtype:
        raise RefusedError("corrupt-header", f"{printable(key)[:80]} has no dtype that is known")
    if prod(shape) * DTYPE_BITS[dtype] >= 2**64:
        raise RefusedError("corrupt-header", f"{printable(key)[:80]} has a shape that no memory holds")
    return Tensor(dtype, shape, tuple(chunks))


def _dtype(properties: Any) -> str:
    """The first of the properties; they are pickled as a tuple, and by some versions as a dictionary."""
    if not isinstance(properties, Described):
        return ""
    state: Any = properties.state
    first = cast("tuple[Any, ...]", state)[0] if isinstance(state, tuple) and state else properties.get("dtype")
    return first.dtype if isinstance(first, Global) else ""


def _places(storage: Any) -> Iterable[tuple[tuple[str, Shape], Place]]:
    """(key, offset of the chunk) -> where it is stored. What is no tensor has the offset None and is left out."""
    for index, info in _dict(storage, "storage_data").items():
        if not isinstance(index, Described) or not isinstance(info, Described):
            raise malformed("storage_data holds what is no entry")
        key, offset = index.get("fqn"), index.get("offset")
        if not isinstance(key, str) or offset is None:
            continue
        file, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
        if not isinstance(file, str) or type(start) is not int or type(length) is not int or min(start, length) < 0:
            raise malformed(f"the place of {printable(key)[:80]} is none")
        yield (
            (key, _shape(offset, "the offset of a chunk")),
            Place(file, start, length, not info.get("transform_descriptors")),
        )


def _paths(planner: Any) -> Iterable[tuple[str, tuple[str, ...]]]:
    """The path of every key in the nested dictionary, where the planner has kept it."""
    if not isinstance(planner, dict):
        return
    for key, path in cast("dict[Any, Any]", planner).items():
        if isinstance(key, str) and isinstance(path, tuple):
            parts = cast("tuple[Any, ...]", path)
            if 0 < len(parts) <= 64 and all(isinstance(p, str | int) for p in parts):
                yield key, tuple(str(p) for p in parts)
