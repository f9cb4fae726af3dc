"""torchao's tensor classes, flattened for safetensors: `module._weight_qdata` and the like, and what describes them.

`__metadata__["module.weight"]` is JSON: the class (`_type`), its attributes (`_data`) and the parts stored
(`_tensor_data_names`).
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

from blockaudit.checkpoint.jsontext import BadJsonError, parse_object
from blockaudit.checkpoint.quantization.reader import Reader, ceil
from blockaudit.records.checkpoint import TensorHeader
from blockaudit.records.quantised import Shape

# Classes whose qdata has one element a number; whose qdata has two (where it is U8); whose attributes hold the shape.
_UNPACKED = ("Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor")
_HALVED = ("MXTensor", "NVFP4Tensor")
_SHAPED = ("Int4Tensor", "Int4PlainInt32Tensor", "Int4TilePackedTo4dTensor")
_PARTS = "qdata"
_METADATA = "safetensors __metadata__"


def read(reader: Reader) -> None:
    """Every tensor that metadata describes as one of torchao's classes, and parts that none describes."""
    words = [w for w in reader.groups if w.startswith("_") and w.endswith(f"_{_PARTS}")]
    if not words and reader.declared.method != "torchao":
        return
    described: dict[str, str] = {}
    for file in reader.checkpoint.files:
        described |= {name: text for name, text in file.metadata.items() if "." in name and text.startswith("{")}
    for name, text in described.items():
        _tensor(reader, name, text)
    for key in (key for word in words for key in reader.groups[word]):
        if key not in reader.claimed:
            module, _, last = key.rpartition(".")
            name = f"{module}.{last[1 : -len(_PARTS) - 1]}"
            reader.misfit("torchao weights that no metadata describes", key, f"{_METADATA}: {name}", None, _METADATA)
            reader.add(name, key, "torchao", None, None)


def _tensor(reader: Reader, name: str, text: str) -> None:
    module, _, last = name.rpartition(".")
    stem = f"{module}._{last}_"
    try:
        said = parse_object(text.encode("utf-8", "surrogatepass"))[0]
    except BadJsonError as error:
        reader.misfit("torchao metadata that is not JSON", name, "a JSON object", str(error), _METADATA)
        return
    kind, parts, data = said.get("_type"), said.get("_tensor_data_names"), said.get("_data")
    if not isinstance(parts, list) or not isinstance(data, dict) or kind in ("Tensor", "Parameter"):
        return
    names = [f"{stem}{part}" for part in cast("list[Any]", parts) if isinstance(part, str)]
    key = f"{stem}{_PARTS}"
    if key not in reader.tensors:
        reader.misfit(f"torchao weights without {_PARTS}", name, key, None, _METADATA)
    else:
        shape = _shape(kind, cast("dict[str, Any]", data), reader.tensors[key])
        reader.add(name, key, "torchao", shape, _bits(kind, reader.tensors[key]))
        if kind not in (*_UNPACKED, *_HALVED, *_SHAPED):
            reader.misfit("torchao weights of a class that is not known", name, _UNPACKED, kind, _METADATA)
    for part in names:
        if part != key:
            reader.companion(name, part, _need(part, kind, cast("dict[str, Any]", data), reader.tensors.get(key)))


def _shape(kind: Any, data: dict[str, Any], qdata: TensorHeader) -> Shape | None:
    if kind in _UNPACKED:
        return qdata.shape
    if kind in _HALVED and qdata.shape:
        return (*qdata.shape[:-1], qdata.shape[-1] * (2 if qdata.dtype == "U8" else 1))
    return _sizes(data.get("shape")) if kind in _SHAPED else None


def _bits(kind: Any, qdata: TensorHeader) -> int | None:
    return 4 if kind in _SHAPED or (kind in _HALVED and qdata.dtype == "U8") else 8


def _sizes(given: Any) -> Shape | None:
    sizes = tuple(cast("list[Any]", given)) if isinstance(given, list) else ()
    return sizes if sizes and all(type(n) is int and n > 0 for n in sizes) else None


def _need(part: str, kind: Any, data: dict[str, Any], qdata: TensorHeader | None) -> Shape | None:
    """The shape of scales and zero points where there is one for each block; None where the class has its own order."""
    block = _sizes(data.get("block_size"))
    if kind not in _UNPACKED or qdata is None or block is None or len(block) != len(qdata.shape):
        return None
    if not part.endswith(("_scale", "_zero_point")) or not prod(qdata.shape):
        return None
    return tuple(ceil(size, b) for size, b in zip(qdata.shape, block, strict=True))
