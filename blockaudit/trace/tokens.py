"""Token batches: random ones of several lengths, padded on either side, and those of a user's file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from blockaudit.checkpoint.decode import DECODERS
from blockaudit.checkpoint.files import open_regular, pread_all, read_capped, reason
from blockaudit.checkpoint.header import read_header
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import TensorHeader
from blockaudit.records.trace_file import TOKENS

_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Batch:
    """Token ids [B, S] (int64), their mask [B, S] (int64: 1 counts), and the decoder's, where there is one."""

    input_ids: Tensor
    attention_mask: Tensor
    decoder_input_ids: Tensor | None = None
    decoder_attention_mask: Tensor | None = None

    @property
    def valid(self) -> Tensor:
        """Which rows count, as bool [B, S]."""
        return self.attention_mask.bool()

    @property
    def padded(self) -> bool:
        return not bool(self.valid.all())

    def tensors(self) -> dict[str, Tensor]:
        """By the names that a trace file and a model call them."""
        return {name: value for name, value in vars(self).items() if value is not None}


def tokens(vocab: int, batch: int, length: int, seed: int) -> Tensor:
    """Random ids [batch, length] below `vocab`, the same for a seed everywhere."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (batch, length), generator=draw)


def whole(ids: Tensor) -> Batch:
    """A batch without padding."""
    return Batch(ids, torch.ones_like(ids))


def padded(vocab: int, batch: int, length: int, seed: int, *, side: str = "right", pad: int = 0) -> Batch:
    """Rows of several lengths, from `length` down to about a third of it, filled with `pad` on one side.

    The first row is whole. side: `left` or `right`.
    """
    ids = tokens(vocab, batch, length, seed)
    lengths = torch.tensor(_lengths(batch, length))[:, None]
    place = torch.arange(length)[None]
    real = place < lengths if side == "right" else place >= length - lengths
    return Batch(torch.where(real, ids, pad), real.long())


def _lengths(batch: int, length: int) -> list[int]:
    """From whole to a third, in even steps."""
    shortest = max(1, length // 3)
    return [length - (length - shortest) * i // max(1, batch - 1) for i in range(batch)]


def batches(vocab: int, batch: int, length: int, seed: int, *, pad: int = 0) -> dict[str, Batch]:
    """Whole, shorter (an odd length), padded on the right and on the left; two rows at least where they are padded."""
    short = min(length, length // 2 | 1)
    rows = max(batch, 2)
    return {
        "tokens": whole(tokens(vocab, batch, length, seed)),
        "short": whole(tokens(vocab, batch, short, seed + 1)),
        "right-padded": padded(vocab, rows, length, seed + 2, side="right", pad=pad),
        "left-padded": padded(vocab, rows, length, seed + 3, side="left", pad=pad),
    }


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the token tensors: those given of `TOKENS`, in that order, as little-endian int64, end to end."""
    summed = hashlib.sha256()
    for name in TOKENS:
        if name in tensors:
            ids: Any = tensors[name].to("cpu", torch.int64).contiguous().numpy()
            summed.update(memoryview(ids).cast("B"))
    return summed.hexdigest()


def read_tokens(path: str | os.PathLike[str], *, vocab: int | None = None, pad: int = 0) -> Batch:
    """The tokens of a user's file. Raises RequestError, one line.

    `.json`: one list of ids, a list of such lists (the shorter ones are padded on the right with `pad` and masked), or
    an object whose fields have the names of `TOKENS`. `.npy`: ids [S] or [B, S]. `.safetensors`: tensors of those
    names, of whole numbers. vocab: ids lie below it.
    """
    name = os.fspath(path)
    read = {".json": _json, ".npy": _npy, ".safetensors": _safetensors}.get(os.path.splitext(name)[1].lower())
    if read is None:
        raise RequestError(f"--tokens {name}: expected a .json, .npy or .safetensors file")
    try:
        return _batch(read(name), vocab, pad)
    except OSError as error:
        raise RequestError(f"--tokens {name}: cannot be read: {reason(error)}") from error
    except (ValueError, EOFError, RecursionError) as error:
        lines = str(error).splitlines() or ["not readable"]
        raise RequestError(f"--tokens {name}: {lines[0]}") from error


def _json(path: str) -> dict[str, Any]:
    found = json.loads(read_capped(path, _MAX_BYTES))
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"input_ids": found}


def _npy(path: str) -> dict[str, Any]:
    import io

    import numpy as np

    found: Any = np.load(io.BytesIO(read_capped(path, _MAX_BYTES)), allow_pickle=False)
    if found.dtype.kind not in "iu":
        raise ValueError(f"expected whole numbers, found {found.dtype}")
    return {"input_ids": found.tolist()}


def _safetensors(path: str) -> dict[str, Any]:
    header, faults = read_header(path, os.path.basename(path))
    if faults:
        raise ValueError(faults[0].message)
    descriptor, _ = open_regular(path)
    try:
        # A trace holds its sites beside its tokens.
        return {
            key: _whole_numbers(descriptor, header.data_start, key, tensor)
            for key, tensor in header.tensors.items()
            if key in TOKENS
        }
    finally:
        os.close(descriptor)


def _whole_numbers(descriptor: int, data_start: int, key: str, tensor: TensorHeader) -> Any:
    """One tensor as lists."""
    if tensor.dtype[0] not in "IUB" or tensor.dtype not in DECODERS:
        raise ValueError(f"{key}: expected whole numbers, found {tensor.dtype}")
    if tensor.nbytes > _MAX_BYTES:
        raise ValueError(f"{key}: {tensor.nbytes:,} bytes, more than the {_MAX_BYTES:,} that are read")
    data = pread_all(descriptor, tensor.nbytes, data_start + tensor.data_offsets[0])
    values = torch.tensor(list(DECODERS[tensor.dtype](data)), dtype=torch.int64)
    return cast("Any", values.reshape(tensor.shape)).tolist()


def _batch(found: dict[str, Any], vocab: int | None, pad: int) -> Batch:
    unknown = next((key for key in found if key not in TOKENS), None)
    if unknown is not None:
        raise ValueError(f"expected {', '.join(TOKENS)}, found {unknown!r}")
    if "input_ids" not in found:
        raise ValueError("no input_ids in it")
    if "decoder_attention_mask" in found and "decoder_input_ids" not in found:
        raise ValueError("decoder_attention_mask without decoder_input_ids")
    ids, mask = _ids("input_ids", found["input_ids"], found.get("attention_mask"), vocab, pad)
    if "decoder_input_ids" not in found:
        return Batch(ids, mask)
    given = found["decoder_input_ids"], found.get("decoder_attention_mask")
    decoder_ids, decoder_mask = _ids("decoder_input_ids", *given, vocab, pad)
    if len(decoder_ids) != len(ids):
        raise ValueError(f"decoder_input_ids: {len(decoder_ids)} rows, input_ids has {len(ids)}")
    return Batch(ids, mask, decoder_ids, decoder_mask)


def _ids(name: str, found: Any, mask: Any, vocab: int | None, pad: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, both [B, S], from lists."""
    rows = _rows(name, found)
    limit = 2**63 if vocab is None else vocab
    for i, row in enumerate(rows):
        wrong = next((token for token in row if not 0 <= token < limit), None)
        if wrong is not None:
            below = f", {vocab} or more are not in the vocabulary" if vocab is not None and wrong >= 0 else ""
            raise ValueError(f"{name}: row {i} holds {wrong}{below or ', no token id'}")
    length = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
    real = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    if mask is None:
        return ids, real
    masks = _rows(name.replace("input_ids", "attention_mask"), mask)
    if [len(row) for row in masks] != [len(row) for row in rows]:
        raise ValueError(f"{name.replace('input_ids', 'attention_mask')}: its shape is not that of {name}")
    if any(value not in (0, 1) for row in masks for value in row) or not all(map(any, masks)):
        raise ValueError(f"{name.replace('input_ids', 'attention_mask')}: expected 0 and 1, and a 1 in every row")
    real = torch.tensor([row + [0] * (length - len(row)) for row in masks])
    return ids, real


def _rows(name: str, found: Any) -> list[list[int]]:
    """One list of whole numbers, or several, as several."""
    outer = cast("list[Any]", found) if isinstance(found, list) else []
    rows = cast("list[Any]", outer if outer and isinstance(outer[0], list) else [outer])
    if not all(isinstance(row, list) and row and all(type(token) is int for token in row) for row in rows):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise ValueError(f"{name}: expected a list of token ids, or a list of such lists, none of them empty")
    return rows
