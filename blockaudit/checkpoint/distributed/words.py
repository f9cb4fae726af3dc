"""The few names that the `.metadata` of a torch.distributed checkpoint uses. No other name is accepted."""

from __future__ import annotations

from typing import Any, cast

from blockaudit.checkpoint.pickle_machine import Described, put
from blockaudit.checkpoint.refusal import malformed, unsafe
from blockaudit.checkpoint.torch_words import Global, torch_dtype
from blockaudit.records.checkpoint import MAX_RANK

_METADATA = "torch.distributed.checkpoint.metadata"
# Where PyTorch 2.0 to 2.2 kept the properties of a tensor.
_OLD = "torch.distributed._shard.sharded_tensor.metadata"
# Classes whose objects become descriptions, by module.
_CLASSES: dict[str, tuple[str, ...]] = {
    _METADATA: (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    _OLD: ("TensorProperties", "MEM_FORMAT_ENCODING"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    # Megatron-core keeps the plan by which it saved.
    "torch.distributed.checkpoint.planner": (
        "SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData",
    ),
    "megatron.core.dist_checkpointing.strategies.torch": ("MCoreMetadata", "MCoreSavePlan"),
    "pathlib": ("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"),
    "pathlib._local": ("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"),
    "torch.serialization": ("_get_layout",),
}  # fmt: skip
_KNOWN = {f"{module}.{name}" for module, names in _CLASSES.items() for name in names}
_SIZE, _ORDERED = "torch.Size", "collections.OrderedDict"
_MAX_SIZE = 2**63


def _size(args: tuple[Any, ...]) -> tuple[int, ...]:
    """A torch.Size: a tuple of natural numbers."""
    numbers = cast("tuple[Any, ...]", args[0]) if args and isinstance(args[0], tuple | list) else ()
    if len(numbers) > MAX_RANK or not all(type(n) is int and 0 <= n < _MAX_SIZE for n in numbers):
        raise malformed("torch.Size is not made of sizes")
    return tuple(numbers)


class DistributedWords:
    """The vocabulary of `.metadata`: every object becomes a description of itself."""

    def find(self, module: str, name: str) -> Global:
        full = f"{module}.{name}"
        if module == "torch" and torch_dtype(name):
            return Global(full, torch_dtype(name))
        if full not in _KNOWN and full not in (_SIZE, _ORDERED):
            raise unsafe(full)
        return Global(full)

    def call(self, function: Any, args: tuple[Any, ...]) -> Any:
        if not isinstance(function, Global) or function.dtype:
            raise malformed("it calls what is no function")
        if function.name == _SIZE:
            return _size(args)
        if function.name == _ORDERED:
            return _ordered(args)
        return Described(function.name.rpartition(".")[2], args)

    def persistent(self, pid: Any) -> Any:
        raise malformed("it has a persistent id, which metadata has no use for")

    def build(self, target: Any, state: Any) -> None:
        if isinstance(target, Described):
            target.state = state
        elif not isinstance(target, dict):
            raise unsafe("__setstate__ of an object that is none of its own")


def _ordered(args: tuple[Any, ...]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for item in cast("list[Any]", args[0]) if args and isinstance(args[0], list) else []:
        pair = cast("tuple[Any, ...]", item) if isinstance(item, tuple) else ()
        if len(pair) == 2:
            put(made, pair[0], pair[1])
    return made
