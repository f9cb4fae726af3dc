"""The JSON of a safetensors header: bytes in, tensors out, in one fast way and one exact way.

The fast way decodes straight into records and proves with one count that nothing was dropped; whatever it cannot vouch
for goes the exact way, which finds the words for what is wrong.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from blockaudit.checkpoint.files import short
from blockaudit.checkpoint.jsontext import MANY, BadJsonError, Pairs, check_size, parse_pairs
from blockaudit.records.checkpoint import MAX_RANK, TensorHeader

# Possessive: what has been matched is not remembered, or a text of megabytes would take gigabytes.
_METADATA = re.compile(rb'\{\s*"__metadata__"\s*:\s*(\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\})\s*(,?)', re.DOTALL)
_TENSORS = msgspec.json.Decoder(dict[str, TensorHeader])
_STRINGS = msgspec.json.Decoder(dict[str, str])
# Quotes that one tensor's entry holds: its key, three field names and the dtype.
_QUOTES = 10
_FIELDS = ("dtype", "shape", "data_offsets")
# Beyond this a number is not wrong by a bit or a sign: somebody made it long.
_ABSURD = 2**70


class HeaderText(msgspec.Struct, frozen=True):
    """A header as written. `repeated` holds the entries that a later one of the same key replaced."""

    tensors: dict[str, TensorHeader]
    metadata: dict[str, str]
    repeated: list[tuple[str, TensorHeader]] = []


def _fast(raw: bytes) -> HeaderText | None:
    metadata: dict[str, str] = {}
    body = raw
    found = _METADATA.match(raw)
    try:
        if found:
            text = found.group(1)
            metadata = _STRINGS.decode(text)
            # A key that is given twice would have been dropped; a quote inside a value only costs the exact way.
            if text.count(b'"') != 4 * len(metadata):
                return None
            body = b"{" + raw[found.end() :]
            if found.group(2) and body[1:].lstrip()[:1] == b"}":
                return None  # a comma with nothing after it
        tensors = _TENSORS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    # Ten quotes a tensor and no more: no unknown field, no field or key twice.
    if body.count(b'"') != _QUOTES * len(tensors) or "__metadata__" in tensors:
        return None
    return HeaderText(tensors, metadata)


def _is_size(value: Any) -> bool:
    return type(value) is int  # not isinstance: true is an int to Python


def _sizes(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or isinstance(value, Pairs) or not all(_is_size(v) for v in value):  # pyright: ignore[reportUnknownVariableType]
        raise BadJsonError(f"{name} is not a list of whole numbers")
    if len(value) > MAX_RANK or any(abs(v) >= _ABSURD for v in value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise BadJsonError(f"{name} has more numbers, or longer ones, than can be computed with")
    return tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _entry(key: str, value: Any) -> TensorHeader:
    if not isinstance(value, Pairs):
        raise BadJsonError(f"the entry of {short(key)} is not an object")
    fields = dict(value)
    if len(fields) != len(value):
        raise BadJsonError(f"the entry of {short(key)} gives a field twice")
    unknown = [name for name in fields if name not in _FIELDS]
    missing = [name for name in _FIELDS if name not in fields]
    if unknown:
        raise BadJsonError(f"the entry of {short(key)} has a field {short(unknown[0])} that the format does not know")
    if missing:
        raise BadJsonError(f"the entry of {short(key)} has no {missing[0]}")
    if not isinstance(fields["dtype"], str):
        raise BadJsonError(f"the dtype of {short(key)} is not a string")
    offsets = _sizes(fields["data_offsets"], f"data_offsets of {short(key)}")
    if len(offsets) != 2:
        raise BadJsonError(f"data_offsets of {short(key)} has {len(offsets)} numbers instead of 2")
    return TensorHeader(fields["dtype"], _sizes(fields["shape"], f"shape of {short(key)}"), (offsets[0], offsets[1]))


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, Pairs):
        raise BadJsonError("__metadata__ is not an object")
    for key, text in value:
        if not isinstance(text, str):
            raise BadJsonError(f"__metadata__ maps {short(key)} to something that is not a string")
    return dict(value)


def _exact(raw: bytes) -> HeaderText:
    document = parse_pairs(raw)
    if not isinstance(document, Pairs):
        raise BadJsonError("it is not an object")
    tensors: dict[str, TensorHeader] = {}
    metadata: dict[str, str] | None = None
    repeated: list[tuple[str, TensorHeader]] = []
    for key, value in document:
        if key == "__metadata__":
            if metadata is not None:
                raise BadJsonError("__metadata__ is given twice")
            metadata = _metadata(value)
            continue
        if key in tensors:
            repeated.append((key, tensors[key]))
        tensors[key] = _entry(key, value)
    return HeaderText(tensors, metadata or {}, repeated)


def parse_header(raw: bytes) -> HeaderText:
    """Parse the JSON of a header. Raises BadJsonError, whose message is half a sentence."""
    check_size(raw, MANY)
    return _fast(raw) or _exact(raw)
