"""The few names that a PyTorch state dict uses, and what each stands for. No other name is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from blockaudit.checkpoint.pickle_machine import put
from blockaudit.checkpoint.refusal import RefusedError, malformed, unsafe
from blockaudit.records.checkpoint import DTYPE_BITS, MAX_RANK

_STORAGES = {
    "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Double": "F64", "Long": "I64", "Int": "I32", "Short": "I16",
    "Char": "I8", "Byte": "U8", "Bool": "BOOL", "ComplexFloat": "C64",
}  # fmt: skip
_DTYPES = {
    "float32": "F32", "float": "F32", "float16": "F16", "half": "F16", "bfloat16": "BF16", "float64": "F64",
    "double": "F64", "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16",
    "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
_U63 = 2**63


@dataclass(frozen=True, slots=True)
class Global:
    """An accepted name, such as torch.FloatStorage. `dtype` is set for storages and dtypes; U8 for untyped storages."""

    name: str
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was not made."""

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of bytes of the file, by its key. `elements` are of `dtype`; U8 stands for bytes of any dtype."""

    key: str
    dtype: str
    elements: int

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of a storage: offset, size and strides in elements of `dtype`."""

    storage: Storage
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _globals() -> dict[str, Global]:
    known: dict[str, Global] = {}
    for name, dtype in _STORAGES.items():
        for module in ("torch", "torch.cuda"):
            known[f"{module}.{name}Storage"] = Global(f"{module}.{name}Storage", dtype)
    for name in ("torch.storage.UntypedStorage", "torch.UntypedStorage", "torch.storage._UntypedStorage"):
        known[name] = Global(name, "U8")
    for name, dtype in _DTYPES.items():
        known[f"torch.{name}"] = Global(f"torch.{name}", dtype)
    for name in (*_CALLS, "torch.Tensor", "torch.nn.parameter.Parameter"):
        known[name] = Global(name)
    return known


def _natural(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < _U63:
        raise malformed(f"{what} is not a size")
    return value


def _naturals(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(cast("list[Any]", value)) > MAX_RANK:
        raise malformed(f"{what} is not a shape")
    return tuple(_natural(v, what) for v in cast("list[Any]", value))


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, dtype: str = "") -> Tensor:
    if not isinstance(storage, Storage):
        raise malformed("a tensor is made of something that is no storage")
    shape, steps = _naturals(size, "a tensor's size"), _naturals(stride, "a tensor's stride")
    if len(shape) != len(steps):
        raise malformed("a tensor's size and stride differ in length")
    return Tensor(storage, dtype or storage.dtype, _natural(offset, "a tensor's offset"), shape, steps)


def _rebuild(args: tuple[Any, ...]) -> Tensor:
    """_rebuild_tensor and _rebuild_tensor_v2: storage, offset, size, stride, and what does not matter here."""
    if len(args) < 4:
        raise malformed("a tensor is made of too few parts")
    return _tensor(*args[:4])


def _rebuild_v3(args: tuple[Any, ...]) -> Tensor:
    """_rebuild_tensor_v3: the same, with an untyped storage and the dtype as the seventh argument."""
    if len(args) < 7 or not isinstance(args[6], Global) or not args[6].dtype:
        raise malformed("a tensor is made without a dtype")
    return _tensor(*args[:4], dtype=args[6].dtype)


def _parameter(args: tuple[Any, ...]) -> Tensor:
    if not args or not isinstance(args[0], Tensor):
        raise malformed("a parameter is made of something that is no tensor")
    return args[0]


def _from_type(args: tuple[Any, ...]) -> Any:
    """_rebuild_from_type_v2: function, type, arguments, state."""
    if len(args) < 3 or not isinstance(args[0], Global) or not isinstance(args[2], tuple):
        raise malformed("a tensor is made of the wrong parts")
    if args[0].name == "torch._tensor._rebuild_from_type_v2":
        raise malformed("a tensor is made of itself")
    return _CALLS[args[0].name](cast("tuple[Any, ...]", args[2])) if args[0].name in _CALLS else None


def _size(args: tuple[Any, ...]) -> tuple[int, ...]:
    return _naturals(args[0], "torch.Size") if args else ()


def _ordered(args: tuple[Any, ...]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    # Python 2 wrote the items as one list; each may be read once only, or a small file could make large dictionaries.
    if args and isinstance(args[0], list):
        items = cast("list[Any]", args[0])
        for item in items:
            pair = cast("list[Any]", item) if isinstance(item, tuple | list) else []
            if len(pair) == 2:
                put(made, pair[0], pair[1])
        items.clear()
    return made


def _inert(name: str) -> Callable[[tuple[Any, ...]], Any]:
    return lambda args: Call(name, args)


_CALLS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": _size,
    "collections.OrderedDict": _ordered,
    "torch.device": _inert("torch.device"),
    "torch.serialization._get_layout": _inert("torch.serialization._get_layout"),
}
_GLOBALS = _globals()


def torch_dtype(name: str) -> str:
    """The dtype that `torch.NAME` is, empty where it is none."""
    return _DTYPES.get(name, "")


class TorchWords:
    """The vocabulary of a state dict; remembers every storage that it met, by key."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}

    def find(self, module: str, name: str) -> Global:
        found = _GLOBALS.get(f"{module}.{name}")
        if found is None:
            raise unsafe(f"{module}.{name}")
        return found

    def call(self, function: Any, args: tuple[Any, ...]) -> Any:
        if not isinstance(function, Global):
            raise malformed("it calls what is no function")
        action = _CALLS.get(function.name)
        if action is None:
            raise malformed(f"it calls {function.name}")
        return action(args)

    def persistent(self, pid: Any) -> Storage:
        """A storage id: ('storage', class, key, device, elements[, view])."""
        parts = cast("tuple[Any, ...]", pid if isinstance(pid, tuple) else ())
        if len(parts) < 5 or parts[0] != "storage" or not isinstance(parts[1], Global) or not parts[1].dtype:
            raise malformed("a persistent id is not that of a storage")
        key = parts[2]
        if not isinstance(key, str):
            raise malformed("a storage's key is no string")
        if len(parts) > 5 and parts[5] is not None:
            raise RefusedError(
                "unreadable-file", "it holds views of storages, as PyTorch wrote before 0.4: save it anew"
            )
        storage = Storage(key, parts[1].dtype, _natural(parts[4], "a storage's length"))
        known = self.storages.setdefault(key, storage)
        if known.nbytes != storage.nbytes:
            raise malformed(f"the storage {key[:40]} has two lengths")
        return storage

    def build(self, target: Any, state: Any) -> None:
        del state
        # A state dict carries its _metadata as the attribute of an OrderedDict; it is dropped.
        if not isinstance(target, dict | Tensor):
            raise unsafe("__setstate__ of an object that is no dictionary")
