"""Reading trace files: safetensors whose keys are site names (docs/traces.md).

A site is read when it is asked for, by position; what the header promises is checked when the file is opened. Nothing
here imports torch before a tensor is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from blockaudit.checkpoint.files import open_regular, pread_all, reason, short
from blockaudit.checkpoint.header import read_header
from blockaudit.errors import RequestError
from blockaudit.records import sites
from blockaudit.records.checkpoint import FileHeader, TensorHeader
from blockaudit.records.conformance import MODES
from blockaudit.records.trace_file import FORMAT, TOKENS, VERSION, SiteNumbers, TraceMetadata

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
_FLOATS = ("F64", "F32", "F16", "BF16")
# Bytes that are summed up at once.
_CHUNK = 8 << 20


class TraceFile:
    """One open trace file. `sites` are in the order in which they are executed."""

    def __init__(self, path: str, header: FileHeader, descriptor: int) -> None:
        self.path = path
        self.metadata = TraceMetadata.decoded(header.metadata)
        self.sites = tuple(sites.ordered(k for k in header.tensors if k not in TOKENS))
        self._header = header
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TraceFile:
        """Open and check a trace. Raises RequestError, one line, for whatever is not one."""
        name = os.fspath(path)
        header, faults = read_header(name, os.path.basename(name))
        if faults:
            raise RequestError(f"{name}: {faults[0].message}")
        fault = _fault(header)
        if fault:
            raise RequestError(f"{name}: {fault}")
        try:
            descriptor, _ = open_regular(name)
        except OSError as error:
            raise RequestError(f"{name}: cannot be read: {reason(error)}") from error
        return cls(name, header, descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self._header.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._header.tensors[name].shape

    def dtype(self, name: str) -> str:
        """The dtype of a tensor, in torch's words (`bfloat16`)."""
        return DTYPES[self._header.tensors[name].dtype]

    def tensor(self, name: str) -> Tensor:
        """A site's value [B, S, D] (or a token tensor [B, S]) in its own dtype, on the processor."""
        import torch

        tensor = self._header.tensors[name]
        data = bytearray(self._bytes(name, 0, tensor.nbytes))
        return torch.frombuffer(data, dtype=getattr(torch, self.dtype(name))).reshape(tensor.shape)

    def tokens(self) -> dict[str, Tensor]:
        """The token tensors that the file holds, by name."""
        return {name: self.tensor(name) for name in TOKENS if name in self}

    def valid(self, site: str) -> Tensor | None:
        """Which rows of a site count, as bool [B, S]; None where the file holds no mask for them."""
        second = _of_second(site, _has_second(self._header))
        name = "decoder_attention_mask" if second else "attention_mask"
        return self.tensor(name).bool() if name in self else None

    def numbers(self, site: str) -> SiteNumbers:
        """RMS and non-finite count of a site, chunk by chunk."""
        import numpy as np

        total, sound = 0.0, 0
        for values in self._chunks(site):
            finite = values[np.isfinite(values)]
            total += float(np.square(finite).sum())
            sound += finite.size
        tensor = self._header.tensors[site]
        rms = (total / sound) ** 0.5 if sound else 0.0
        return SiteNumbers(site, tensor.shape, self.dtype(site), rms, tensor.elements - sound)

    def _chunks(self, site: str) -> Iterator[Any]:
        """A site as float64 numpy arrays."""
        import numpy as np

        tensor = self._header.tensors[site]
        for start in range(0, tensor.nbytes, _CHUNK):
            data = self._bytes(site, start, min(_CHUNK, tensor.nbytes - start))
            if tensor.dtype == "BF16":  # the upper half of a float32
                wide = np.frombuffer(data, "<u2").astype("<u4") << 16
                yield wide.view("<f4").astype("f8")
            else:
                yield np.frombuffer(data, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[tensor.dtype]).astype("f8")

    def _bytes(self, name: str, start: int, length: int) -> bytes:
        tensor = self._header.tensors[name]
        try:
            data = pread_all(self._descriptor, length, self._header.data_start + tensor.data_offsets[0] + start)
        except OSError as error:
            raise RequestError(f"{self.path}: {name} cannot be read: {reason(error)}") from error
        if len(data) != length:
            raise RequestError(f"{self.path}: {name}: the file has become shorter since it was opened")
        return data


def _fault(header: FileHeader) -> str:
    """What keeps a sound safetensors file from being a trace; empty: nothing."""
    version = header.metadata.get(FORMAT)
    if version is None:
        return f"no trace: its metadata has no {FORMAT!r} (docs/traces.md)"
    if version != VERSION:
        return f"a trace of version {short(version, 40)!r}; this release reads version {VERSION}"
    mode = header.metadata.get("blockaudit.mode", "")
    if mode not in ("", *MODES):
        return f"its mode {short(mode, 40)!r} is none of {', '.join(MODES)}"
    if all(name in TOKENS for name in header.tensors):
        return "a trace without a single site"
    faults = (_tensor_fault(name, tensor) for name, tensor in header.tensors.items())
    return next(filter(None, faults), "") or _sizes_fault(header)


def _tensor_fault(name: str, tensor: TensorHeader) -> str:
    said, shape = short(name), list(tensor.shape)
    if name in TOKENS:
        sound = tensor.dtype == "I64" and len(shape) == 2 and tensor.elements
        return "" if sound else f"{said}: expected I64 of shape [B, S], found {tensor.dtype} of shape {shape}"
    if sites.parse(name) is None:
        return f"{said!r} is no trace site (docs/traces.md names them)"
    if tensor.dtype not in _FLOATS:
        return f"{said}: expected one of {', '.join(_FLOATS)}, found {tensor.dtype}"
    if len(shape) != 3 or not tensor.elements:
        return f"{said}: expected shape [B, S, D], found {shape}"
    return ""


def _sizes_fault(header: FileHeader) -> str:
    """All sites of a stack, and its tokens, have one batch and one length."""
    seen: dict[bool, tuple[str, tuple[int, ...]]] = {}
    second = _has_second(header)
    for name, tensor in header.tensors.items():
        first, sizes = seen.setdefault(_of_second(name, second), (name, tensor.shape[:2]))
        if tensor.shape[:2] != sizes:
            return f"{name}: {list(tensor.shape[:2])} rows, {first} has {list(sizes)}: one batch, one length"
    return ""


def _has_second(header: FileHeader) -> bool:
    """Whether the model has a decoder beside an encoder, with rows of its own."""
    return any(name.startswith(("decoder.", "decoder_")) for name in header.tensors)


def _of_second(name: str, second: bool) -> bool:
    """Whether a tensor has the decoder's rows."""
    return second and (name.startswith(("decoder.", "decoder_")) or name in ("final_norm", "logits"))


def listed(path: str | os.PathLike[str]) -> tuple[TraceMetadata, list[SiteNumbers]]:
    """What `trace show` shows."""
    with TraceFile.open(path) as file:
        return file.metadata, [file.numbers(site) for site in file.sites]
