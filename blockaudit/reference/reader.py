"""Values of a manifest's functions, checked one by one: nothing is taken for what it is not."""

from __future__ import annotations

import math
from typing import Any, cast

from blockaudit.records.bound import BoundManifest, Resolved
from blockaudit.reference.assembly import UnresolvedError

DTYPES = ("float64", "float32", "bfloat16", "float16")


class Reader:
    """Values under one owner. Each method raises UnresolvedError with the name of a field that is not as it must be."""

    def __init__(self, bound: BoundManifest, owner: str) -> None:
        self._bound = bound
        self._owner = owner

    def has(self, name: str) -> bool:
        """Whether the manifest says anything of it."""
        return any(f.startswith(f"{self._owner}.{name}") for f in self._bound.functions)

    def raw(self, name: str) -> Any:
        """The value as it is; None where the manifest says nothing."""
        found = self._bound.functions.get(f"{self._owner}.{name}")
        return None if found is None else self._known(name, found)

    def _known(self, name: str, found: Resolved) -> Any:
        if not found.known:
            raise UnresolvedError(f"{self._owner}.{name} depends on config.json, which does not give it")
        return found.value

    def number(self, name: str) -> float | None:
        """A finite number; None where there is none."""
        found = self._bound.functions.get(f"{self._owner}.{name}")
        return None if found is None else self._number(name, found)

    def _number(self, name: str, found: Resolved) -> float | None:
        value = self._known(name, found)
        if value is not None and not finite(value):
            raise UnresolvedError(f"{self._owner}.{name} is {value!r}: expected a number")
        return None if value is None else float(value)

    def count(self, name: str) -> int | None:
        """A whole number from 0 on; None where there is none."""
        value = self.number(name)
        if value is not None and (value != int(value) or not 0 <= value < 2**48):
            raise UnresolvedError(f"{self._owner}.{name} is {value:g}: expected a whole number")
        return None if value is None else int(value)

    def size(self, name: str) -> int:
        """A whole number above 0 that has to be there."""
        value = self.must_count(name)
        if value < 1:
            raise UnresolvedError(f"{self._owner}.{name} is {value}: expected at least 1")
        return value

    def above(self, name: str, bound: float) -> float:
        """A number above `bound` that has to be there."""
        value = self.must(name)
        if not value > bound:
            raise UnresolvedError(f"{self._owner}.{name} is {value:g}: expected more than {bound:g}")
        return value

    def field(self, name: str) -> float | None:
        """A number of the contract (`softcap`); None where there is none."""
        found = self._bound.fields.get(f"{self._owner}.{name}")
        return None if found is None else self._number(name, found)

    def dtype(self, name: str) -> str | None:
        """A floating-point dtype by torch's name; None where there is none."""
        return None if self.raw(name) is None else self.word(name, DTYPES)

    def flag(self, name: str) -> bool:
        """True or false; false where the manifest, or config.json, says nothing."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise UnresolvedError(f"{self._owner}.{name} is {value!r}: expected true or false")
        return bool(value)

    def word(self, name: str, words: tuple[str, ...]) -> str:
        """One of some words."""
        value = self.raw(name)
        if value not in words:
            raise UnresolvedError(f"{self._owner}.{name} is {value!r}: expected one of {', '.join(words)}")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        value = self.raw(name)
        items = cast("list[Any]", value) if isinstance(value, list | tuple) else []
        if not items or not all(finite(v) and v > 0 for v in items):
            raise UnresolvedError(f"{self._owner}.{name}: expected a list of numbers above 0")
        return tuple(float(v) for v in items)

    def needed(self, name: str, value: float | int | None) -> Any:
        """A value that has to be there."""
        if value is None:
            raise UnresolvedError(f"{self._owner}.{name} is not given")
        return value

    def must(self, name: str) -> float:
        """A number that has to be there."""
        return self.needed(name, self.number(name))

    def must_count(self, name: str) -> int:
        """A whole number that has to be there."""
        return self.needed(name, self.count(name))


def finite(value: Any) -> bool:
    """Whether a value is a number, and one that arithmetic can use."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and (isinstance(value, float) or abs(value) < 2**63)
