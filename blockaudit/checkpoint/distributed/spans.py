"""Where the bytes of every tensor of a distributed checkpoint lie: one range of a file, or a box in each of several."""

from __future__ import annotations

import io
import os
from functools import partial
from math import prod

from blockaudit.checkpoint.distributed import MEGATRON_CORE, NAME
from blockaudit.checkpoint.distributed.archives import ScatteredError, Window, start_in
from blockaudit.checkpoint.distributed.chunks import Budget, flaw
from blockaudit.checkpoint.distributed.files import layers_of, model_of
from blockaudit.checkpoint.distributed.layers import Layer
from blockaudit.checkpoint.distributed.metadata import Chunk, Tensor, read_metadata
from blockaudit.checkpoint.files import reason, short
from blockaudit.checkpoint.gathering import box
from blockaudit.checkpoint.ranges import Gathered, OpenFiles, Span
from blockaudit.checkpoint.refusal import RefusedError
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import DTYPE_BITS, Checkpoint

_GATHER = "gather it first (python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR OUT.pt)"


def spans(checkpoint: Checkpoint, files: OpenFiles) -> dict[str, Span]:
    """The bytes of every tensor, by key. `files` holds all files of the checkpoint.

    The directory of every chunk's archive is read, and no number. Raises RequestError where a tensor is not whole, or
    lies there in another way than torch.distributed.checkpoint writes it.
    """
    model = _model(checkpoint)
    named = layers_of(model, checkpoint.format == MEGATRON_CORE)
    if _types(checkpoint) != {key: (model[layer.stacked].dtype, layer.shape) for key, layer in named.items()}:
        path = os.path.join(checkpoint.folder, NAME)
        raise RequestError(f"{path}: it changed while it was read: run again once nothing writes to it")
    found = _Spans(checkpoint, files)
    whole = {key: found.of(key, tensor) for key, tensor in model.items()}
    return {key: _layer(whole[layer.stacked], layer, model[layer.stacked]) for key, layer in named.items()}


def _layer(span: Span, layer: Layer, tensor: Tensor) -> Span:
    """The bytes of one place of the first axis."""
    if layer.number is None:
        return span
    nbytes = tensor.nbytes // tensor.shape[0]
    part = span.part(layer.number * nbytes, nbytes)
    return part.alone() if isinstance(part, Gathered) else part


def _types(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {key: (tensor.dtype, tensor.shape) for key, tensor in checkpoint.tensors.items()}


def _model(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors with their chunks, from the metadata. Raises RequestError where it cannot be read."""
    path = os.path.join(checkpoint.folder, NAME)
    try:
        return model_of(read_metadata(path))
    except RefusedError as error:
        raise RequestError(f"{path}: {error.message}") from error
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason(error)}") from error


class _Spans:
    def __init__(self, checkpoint: Checkpoint, files: OpenFiles) -> None:
        self._source, self._files = checkpoint.source, files
        self._paths = {file.name: file.path for file in checkpoint.files if file.readable}
        self._budget = Budget()

    def of(self, key: str, tensor: Tensor) -> Span:
        why = flaw(tensor, self._budget)
        if why:
            raise RequestError(f"{self._source}: {short(key)} {why}: save it anew")
        filled = [chunk for chunk in tensor.chunks if prod(chunk.sizes)]
        if not filled:
            return Span(self._paths[NAME], 0, 0)
        width = DTYPE_BITS[tensor.dtype] // 8
        boxes = [box(*self._start(key, tensor, c), c.offsets, c.sizes, tensor.shape, width) for c in filled]
        first = min(boxes, key=lambda one: one.first)
        if len(boxes) == 1:
            return Span(first.path, first.offset, tensor.nbytes)
        return Gathered(first.path, first.offset, tensor.nbytes, boxes=tuple(sorted(boxes, key=lambda one: one.first)))

    def _start(self, key: str, tensor: Tensor, chunk: Chunk) -> tuple[str, int]:
        """The file of a chunk, and the first byte of its numbers."""
        place = chunk.place
        at = f"{self._source}: {short(key)}: the chunk at {list(chunk.offsets)}"
        if place is None or place.file not in self._paths:
            raise RequestError(f"{at} is in no file of the folder: save it anew")
        if not place.plain:
            raise RequestError(f"{at} was packed by an extension of the writer, which is not run: {_GATHER}")
        path = self._paths[place.file]
        window = Window(partial(self._files.read_at, path), place.start, place.length)
        try:
            start = start_in(io.BufferedReader(window), place.length, key, tensor.dtype, chunk.sizes)
        except RefusedError as error:
            remedy = f": {_GATHER}" if isinstance(error, ScatteredError) else ""
            text = f"{at} cannot be read in {place.file} at byte {place.start:,}: {error.message}{remedy}"
            raise RequestError(text) from error
        return path, place.start + start
