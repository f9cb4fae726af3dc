"""JSON from files that nobody vouches for: duplicate keys are seen, and whatever is wrong is a `BadJsonError`."""

from __future__ import annotations

import json
import re
from typing import Any, cast

MAX_DEPTH = 100
# Signs that begin or part values: a header of 90,000 tensors has 800,000 of them, a config.json with 20,000 labels
# 40,000. A hostile file can make two bytes into a value, and a value takes a hundred bytes of memory.
MANY = 2_000_000
_SOME = 400_000
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class BadJsonError(Exception):
    """The text is not JSON, or not JSON that this program is willing to hold. The message is half a sentence."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object as written: its pairs in order, duplicates included."""


def check_size(raw: bytes, limit: int) -> None:
    """Raises BadJsonError, before anything is made of it, where a text holds more values than its kind ever has."""
    if len(raw) > limit and sum(map(raw.count, (b",", b"{", b"["))) > limit:
        raise BadJsonError(f"it holds more than {limit:,} values")


def _no_constant(word: str) -> Any:
    raise BadJsonError(f"it holds {word}, which is not JSON")


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJsonError(f"it is not UTF-8 (byte {error.start})") from error


def _loads(raw: bytes, *, pairs: Any, constants: bool, limit: int) -> Any:
    check_size(raw, limit)
    text = _text(raw)
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=None if constants else _no_constant)
        if _SURROGATE.search(text):  # "\ud800" alone is no character: it could not be printed, written or compared
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadJsonError("it holds half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise BadJsonError(f"{error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise BadJsonError("it is nested too deeply") from error
    except ValueError as error:  # an integer of more than 4,300 digits
        raise BadJsonError("it holds a number that is too long") from error
    return value


def parse_pairs(raw: bytes) -> Any:
    """Parse strictly (no NaN); every object becomes `Pairs`. Raises BadJsonError."""
    return _loads(raw, pairs=Pairs, constants=False, limit=MANY)


def _too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("dict[str, Any]", item).values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
        if not below:
            return False
        level = below
    return True


def parse_object(raw: bytes) -> tuple[dict[str, Any], list[str]]:
    """Parse as Python's json does (NaN and Infinity allowed: real configs hold them).

    Returns the object and the keys that some object in it gives twice with different values (the last one counts).
    Raises BadJsonError, also where the text is no object.
    """
    duplicates: list[str] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made and made[key] != value:
                duplicates.append(key)
            made[key] = value
        return made

    value = _loads(raw, pairs=build, constants=True, limit=_SOME)
    if not isinstance(value, dict):
        raise BadJsonError(f"it is a {type(value).__name__}, not an object")
    if _too_deep(value):
        raise BadJsonError("it is nested too deeply")
    return cast("dict[str, Any]", value), duplicates
