"""add, scale, fold, cast: operations that change numbers and not where they lie."""

from __future__ import annotations

from typing import Any

from blockaudit.migrate.ops.base import Handler, OperationError, axis_of, each
from blockaudit.records.migration import Row, State, TensorType
from blockaudit.records.operations import Add, Cast, Fold, Operation, Scale

# safetensors' names of the dtypes that torch can compute with, and torch's.
TORCH_NAMES: dict[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip
_OURS = {torch_name: name for name, torch_name in TORCH_NAMES.items()}
# Bits of the significand, the leading one counted: what decides whether a cast can be undone.
_DIGITS = {"F64": 53, "F32": 24, "F16": 11, "BF16": 8}
_EXPONENT = {"F64": 11, "F32": 8, "F16": 5, "BF16": 8}


def dtype_name(text: str) -> str:
    """A dtype as safetensors spells it, from either spelling. Raises OperationError."""
    name = text.removeprefix("torch.")
    found = _OURS.get(name, name)
    if found not in TORCH_NAMES:
        raise OperationError(f"knows no dtype {text!r}: give one of {', '.join(_DIGITS)}")
    return found


def _floats(what: str, state: State[TensorType]) -> State[TensorType]:
    for row in state:
        for given in row.values:
            if given.dtype not in _DIGITS:
                raise OperationError(f"{what} needs floating point, and the tensor is {given.dtype}")
    return state


def _added(op: Add, state: State[TensorType]) -> State[TensorType]:
    return _floats("add", state)


def _scaled(op: Scale, state: State[TensorType]) -> State[TensorType]:
    if not isinstance(op.value, int | float) or op.value == 0:
        raise OperationError(f"needs a factor that is not 0, and has {op.value!r}")
    return _floats("scale", state)


def _folded(op: Fold, state: State[TensorType]) -> State[TensorType]:
    rows: list[Row[TensorType]] = []
    for row in _floats("fold", state):
        if len(row.values) < 2:
            raise OperationError("multiplies tensors by a vector, which is the last of them, and there is one tensor")
        *tensors, vector = row.values
        for tensor in tensors:
            axis = axis_of(op.dim, tensor.shape)
            if vector.shape != (tensor.shape[axis],):
                raise OperationError(
                    f"multiplies axis {axis} of {list(tensor.shape)} by a vector of {list(vector.shape)}, not one of "
                    f"[{tensor.shape[axis]}]"
                )
        rows.append(Row(row.at, tuple(tensors)))
    return tuple(rows)


def _cast_types(op: Cast, state: State[TensorType]) -> State[TensorType]:
    wanted = dtype_name(op.dtype)
    return each(op, state, lambda given: TensorType(wanted, given.shape))


def _fold(op: Fold, state: State[Any]) -> State[Any]:
    def folded(tensor: Any, vector: Any) -> Any:
        # In float64, rounded once: the fold then adds one rounding and no more.
        shape = [1] * tensor.ndim
        shape[op.dim] = -1
        return (tensor.double() * (vector.double() + op.offset).reshape(shape)).to(tensor.dtype)

    return tuple(Row(row.at, tuple(folded(tensor, row.values[-1]) for tensor in row.values[:-1])) for row in state)


def _add(op: Add, state: State[Any]) -> State[Any]:
    return each(op, state, lambda t: (t.double() + op.value).to(t.dtype))


def _scale(op: Scale, state: State[Any]) -> State[Any]:
    factor: Any = op.value
    return each(op, state, lambda t: (t.double() * factor).to(t.dtype))


def _cast(op: Cast, state: State[Any]) -> State[Any]:
    def act(given: Any) -> Any:
        import torch

        return given.to(getattr(torch, TORCH_NAMES[dtype_name(op.dtype)]))

    return each(op, state, act)


def _unadd(op: Add, before: State[TensorType]) -> Operation:
    del before
    return _add_back(op)


def _unscale(op: Scale, before: State[TensorType]) -> Operation | None:
    del before
    return Scale(value=1 / op.value, at=op.at) if isinstance(op.value, int | float) else None


def _unfold(op: Fold, before: State[TensorType]) -> None:
    """The vector is used up: nothing says what it was."""
    del op, before


def _uncast(op: Cast, before: State[TensorType]) -> Operation | None:
    """Back to the dtype that it came from, where every number of it has one of its own in the other."""
    came, wanted = {t.dtype for row in before for t in row.values}, dtype_name(op.dtype)
    if len(came) != 1:
        return None
    (dtype,) = came
    if dtype != wanted and not (
        dtype in _DIGITS
        and wanted in _DIGITS
        and _DIGITS[dtype] <= _DIGITS[wanted]
        and _EXPONENT[dtype] <= _EXPONENT[wanted]
    ):
        return None
    return Cast(dtype=dtype, at=op.at)


def _add_back(op: Add) -> Operation:
    return Add(value=-op.value, at=op.at)


def _scale_back(op: Scale) -> Operation | None:
    if isinstance(op.value, str):
        return Scale(value=f"1 / ({op.value})", at=op.at)
    return Scale(value=1 / op.value, at=op.at) if op.value else None


def _fold_back(op: Fold) -> None:
    """The vector is used up: nothing says what it was."""
    del op


def _cast_back(op: Cast) -> Operation | None:
    return Cast(dtype=op.back, back=op.dtype, at=op.at) if op.back is not None else None


HANDLERS: dict[type[Any], Handler] = {
    Add: Handler(_added, _add, _unadd, _add_back),
    Scale: Handler(_scaled, _scale, _unscale, _scale_back),
    Fold: Handler(_folded, _fold, _unfold, _fold_back),
    Cast: Handler(_cast_types, _cast, _uncast, _cast_back),
}
