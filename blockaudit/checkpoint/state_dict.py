"""From what a pickle holds to named tensors: find the state dict in it, and say where each tensor's bytes lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from blockaudit.checkpoint.refusal import RefusedError, printable
from blockaudit.checkpoint.torch_words import Storage, Tensor
from blockaudit.records.checkpoint import DTYPE_BITS, TensorHeader

# Where training loops put the state dict, in order of preference where several hold as many tensors.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params", "ema")
_DEPTH = 3

# First byte of a storage in the file; raises RefusedError where it is not there, or shorter than the pickle says.
Locate = Callable[[Storage], int]


@dataclass(frozen=True, slots=True)
class Named:
    """Tensors by key, the storage of each, those whose elements do not lie side by side, and the wrapper around all."""

    tensors: dict[str, TensorHeader]
    storages: dict[str, str]
    strided: frozenset[str]
    wrapper: str


def _candidates(root: Any) -> Iterator[tuple[str, dict[Any, Any]]]:
    """(path, dictionary) of the root and of every known wrapper in it, each once: a pickle may contain itself."""
    level: list[tuple[str, Any]] = [("", root)]
    seen: set[int] = set()
    for _ in range(_DEPTH):
        below: list[tuple[str, Any]] = []
        for path, item in level:
            if not isinstance(item, dict) or id(cast("Any", item)) in seen:
                continue
            found = cast("dict[Any, Any]", item)
            seen.add(id(found))
            yield path, found
            below.extend((f"{path}.{name}" if path else name, found[name]) for name in _WRAPPERS if name in found)
        level = below


def _held(found: dict[Any, Any]) -> dict[str, Tensor]:
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, Tensor)}


def _choose(root: Any) -> tuple[str, dict[str, Tensor]]:
    best: tuple[str, dict[str, Tensor]] = ("", {})
    for path, found in _candidates(root):
        held = _held(found)
        if len(held) > len(best[1]):
            best = (path, held)
    if best[1]:
        return best
    if isinstance(root, dict) and "param_groups" in root:
        raise RefusedError(
            "sharded-training-state", "this is the state of an optimizer, not a model: audit the weights beside it"
        )
    what = type(cast("object", root)).__name__
    raise RefusedError("unreadable-file", f"it holds a {what} and no state dict with tensors in it")


def _contiguous(tensor: Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.size), reversed(tensor.stride), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _span(tensor: Tensor) -> tuple[int, bool]:
    """Elements from the tensor's first to its last, both included, and whether they lie side by side in order."""
    if 0 in tensor.size:
        return 0, True
    if _contiguous(tensor):
        return math.prod(tensor.size), True
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size, tensor.stride, strict=True)), False


def place(key: str, tensor: Tensor, locate: Locate) -> tuple[TensorHeader, bool]:
    """Where the bytes of a tensor lie, and whether its elements lie side by side. Raises RefusedError."""
    width = DTYPE_BITS[tensor.dtype] // 8
    length, contiguous = _span(tensor)
    start = tensor.offset * width
    if start + length * width > tensor.storage.nbytes:
        raise RefusedError(
            "corrupt-header",
            f"{printable(key)} reaches past the end of its storage",
            expected=start + length * width,
            observed=tensor.storage.nbytes,
        )
    start += locate(tensor.storage)
    return TensorHeader(tensor.dtype, tensor.size, (start, start + length * width)), contiguous


def _is_text(key: str) -> bool:
    """Half a surrogate pair, which a pickle can hold, could be neither printed nor written."""
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def name_tensors(root: Any, locate: Locate) -> Named:
    """Find the state dict in `root` and place its tensors. Entries that are no tensors are left out.

    Byte ranges are absolute in the file; of a tensor whose elements do not lie side by side, it is the range from the
    first to the last. Raises RefusedError.
    """
    wrapper, held = _choose(root)
    tensors: dict[str, TensorHeader] = {}
    strided: set[str] = set()
    for key, tensor in held.items():
        if not _is_text(key):
            raise RefusedError("corrupt-header", f"the name {printable(key)} is not valid text")
        tensors[key], contiguous = place(key, tensor, locate)
        if not contiguous:
            strided.add(key)
    return Named(tensors, {key: tensor.storage.key for key, tensor in held.items()}, frozenset(strided), wrapper)
