"""bitsandbytes: eight bits with one scale a row (`SCB`), four bits flattened, their shape in a line of JSON."""

from __future__ import annotations

from math import prod
from typing import Any, cast

from blockaudit.checkpoint.jsontext import BadJsonError, parse_object
from blockaudit.checkpoint.quantization.reader import CONFIG, Reader, ceil
from blockaudit.records.checkpoint import DTYPE_BITS
from blockaudit.records.quantised import Shape

_STATE = "quant_state.bitsandbytes__"
_BELOW = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_CODES = 16  # values of a four bit code


def read(reader: Reader) -> None:
    """Weights with `SCB` beside them, and weights with a `quant_state` below them."""
    _eight(reader)
    words = [word for word in reader.groups if word.startswith("bitsandbytes__")]
    states = {key.rpartition(f".{_STATE}")[0]: key for word in words for key in reader.groups[word]}
    below = {key[: -len(name) - 1] for name in _BELOW for key in reader.groups.get(name, ())}
    bare = reader.groups.get("weight", ()) if reader.declared.raw.get("load_in_4bit") is True else ()
    found = [k for k in (*states, *sorted(below - states.keys()), *bare) if k in reader.tensors]
    reader.ahead(states.values())
    for key in dict.fromkeys(found):
        header = reader.tensors[key]
        # One column: how four bit numbers are flattened, whatever dtype holds them.
        if key in states or key in below or (header.dtype == "U8" and header.shape[1:] == (1,)):
            _four(reader, key, states.get(key))


def _eight(reader: Reader) -> None:
    shown = reader.groups.get("SCB")
    if not shown and reader.declared.raw.get("load_in_8bit") is not True:
        return
    for key in reader.groups.get("weight", ()):
        header, stem = reader.tensors[key], key.removesuffix("weight")
        if header.dtype != "I8" or len(header.shape) != 2:
            continue
        reader.add(key, key, "bitsandbytes-8bit", header.shape, 8, "SCB")
        reader.companion(key, f"{stem}SCB", (header.shape[0],))
        reader.companion(key, f"{stem}weight_format", (), (1,), required=False)


def _four(reader: Reader, key: str, state_key: str | None) -> None:
    shown = state_key.rpartition(".")[2] if state_key else "absmax"
    state = _state(reader, key, state_key)
    shape = _shape(state.get("shape"))
    if state and shape is None:
        reader.misfit("quant_state without a shape", state_key or key, "shape: [out, in]", state.get("shape"))
    stored = reader.tensors[key]
    if shape is not None and 2 * stored.nbytes != prod(shape) + prod(shape) % 2:
        held = 2 * stored.elements * DTYPE_BITS.get(stored.dtype, 8) // 8
        reader.misfit("four bit weights of another size than their quant_state says", key, prod(shape), held)
        shape = None
    reader.add(key, key, "bitsandbytes-4bit", shape, 4, shown)
    _scales(reader, key, state, shape)
    _as_declared(reader, state_key or key, state)


def _state(reader: Reader, key: str, state_key: str | None) -> dict[str, Any]:
    if state_key is None:
        reader.misfit("quantised weights without quant_state", key, f"{key}.{_STATE}nf4 or fp4", None)
        return {}
    reader.claimed.add(state_key)
    try:
        return parse_object(reader.raw(state_key))[0]
    except BadJsonError as error:
        reader.misfit("quant_state that is not JSON", state_key, "a JSON object", str(error))
        return {}


def _shape(given: Any) -> Shape | None:
    if not isinstance(given, list):
        return None
    sizes = cast("list[Any]", given)
    return tuple(sizes) if sizes and all(type(n) is int and 0 < n < 1 << 32 for n in sizes) else None


def _scales(reader: Reader, key: str, state: dict[str, Any], shape: Shape | None) -> None:
    """One absmax a block; quantised in their turn where the scheme is nested."""
    block, nested = _positive(state.get("blocksize"), 64), "nested_blocksize" in state
    blocks = ceil(prod(shape), block) if shape is not None else 0
    outer = ceil(blocks, _positive(state.get("nested_blocksize"), 256))
    reader.companion(key, f"{key}.absmax", (blocks,) if blocks else None)
    reader.companion(key, f"{key}.quant_map", (_CODES,))
    reader.companion(key, f"{key}.nested_absmax", (outer,) if outer else None, required=nested)
    reader.companion(key, f"{key}.nested_quant_map", (256,), required=nested)


def _positive(given: Any, default: int) -> int:
    return given if type(given) is int and given > 0 else default


def _as_declared(reader: Reader, key: str, state: dict[str, Any]) -> None:
    raw = reader.declared.raw
    if raw.get("load_in_4bit") is not True:
        return
    for field, have in (("bnb_4bit_quant_type", state.get("quant_type")),
                        ("bnb_4bit_use_double_quant", "nested_blocksize" in state)):  # fmt: skip
        if state and field in raw and raw[field] != have:
            reader.misfit(f"weights that do not keep to {field}", key, raw[field], have, CONFIG)
