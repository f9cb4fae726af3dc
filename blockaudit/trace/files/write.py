"""Writing trace files site by site: beside the target, renamed when whole, so that half a trace is never there.

A safetensors header stands before the data and names all of it. Room is left for it; a header that outgrows its room
costs one copy of the data.
"""

from __future__ import annotations

import json
import os
import shutil
from types import TracebackType
from typing import IO, Any

import torch
from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.records import sites
from blockaudit.records.trace_file import TOKENS, TraceMetadata
from blockaudit.trace.files.read import DTYPES

_CODES = {name: code for code, name in DTYPES.items()}
# Bytes of header that one site takes, and what stands before the first.
_PER_SITE, _BEFORE = 160, 1024


class TraceWriter:
    """A trace being written. As a context manager it is committed at the end, or gone where the body raises.

    expected: about how many tensors will come, for which room is left.
    """

    def __init__(self, path: str | os.PathLike[str], metadata: TraceMetadata, expected: int = 256) -> None:
        self._said: str = os.fspath(path)
        self._path: str = os.path.abspath(self._said)
        self._metadata = metadata
        self._room = _rounded(_BEFORE + _PER_SITE * expected)
        self._entries: dict[str, dict[str, Any]] = {}
        self._end = 0
        folder, name = os.path.split(self._path)
        self._part = os.path.join(folder, f".{name}.{os.getpid()}.part")
        self._open: IO[bytes] | None = None
        try:
            self._open = open(self._part, "w+b", buffering=0)  # noqa: SIM115
            self._open.seek(self._room)
        except OSError as error:
            raise self._refusal(error) from error

    def add(self, name: str, tensor: Tensor) -> None:
        """Append one site, or one tensor of tokens. Raises RequestError where it cannot be written.

        Raises ValueError for a name that is neither, or is there already, and for a dtype that a trace does not hold.
        """
        code = _CODES.get(str(tensor.dtype).removeprefix("torch."))
        if name in self._entries or code is None or (name in TOKENS) != (code == "I64"):
            raise ValueError(f"{name}: given twice, or a {tensor.dtype}, which a trace does not hold there")
        if name not in TOKENS:
            sites.order(name)
        data = _raw(tensor)
        try:
            self._write(data)
        except OSError as error:
            raise self._refusal(error) from error
        self._entries[name] = {
            "dtype": code, "shape": list(tensor.shape), "data_offsets": [self._end, self._end + len(data)],
        }  # fmt: skip
        self._end += len(data)

    def commit(self) -> None:
        """Write the header and give the file its name."""
        header = json.dumps({"__metadata__": self._metadata.encoded(), **self._entries}, ensure_ascii=True).encode()
        try:
            if len(header) + 8 > self._room:
                self._move(_rounded(len(header) + 8))
            self._file.seek(0)
            self._write(memoryview((self._room - 8).to_bytes(8, "little") + header.ljust(self._room - 8)))
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._part, self._path)
        except OSError as error:
            raise self._refusal(error) from error
        self._open = None

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._open is not None:
            self._open.close()
            self._open = None
            os.unlink(self._part)

    @property
    def _file(self) -> IO[bytes]:
        if self._open is None:
            raise ValueError("the trace is already written")
        return self._open

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def _write(self, data: memoryview) -> None:
        """All of it: one call may write less than it is given, also where the disk is full."""
        while data:
            data = data[self._file.write(data) :]

    def _move(self, room: int) -> None:
        """Start the data at `room`, in a new file."""
        old = self._file
        wider = f"{self._part}.wider"
        try:
            with open(wider, "w+b", buffering=0) as new:
                old.seek(self._room)
                new.seek(room)
                shutil.copyfileobj(old, new, 1 << 20)
            os.replace(wider, self._part)
        except OSError:
            if os.path.exists(wider):
                os.unlink(wider)
            raise
        old.close()
        self._open = open(self._part, "r+b", buffering=0)  # noqa: SIM115
        self._room = room

    def _refusal(self, error: OSError) -> RequestError:
        self.discard()
        return RequestError(f"cannot write trace {self._said!r}: {error.strerror or error}")


def _rounded(length: int) -> int:
    """Up to the alignment that data begins at."""
    return -(-length // 64) * 64


def _raw(tensor: Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    data: Any = flat.view(torch.uint8).numpy()
    return memoryview(data).cast("B")


def write(path: str | os.PathLike[str], tensors: dict[str, Tensor], metadata: TraceMetadata) -> None:
    """Write a whole trace at once: sites and tokens by name."""
    with TraceWriter(path, metadata, len(tensors)) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
