"""The fault corpus: what each injected fault must be found as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Make = Callable[..., Any]
TABLE: dict[str, Fault] = {}


@dataclass(frozen=True)
class Fault:
    """One fault in one family's model.

    `site` begins the name of the first local divergence. `rules` are the N and T rules that must fire beside
    `trace-divergence`, `also` those that may. `field` and `layers` are the top diagnosis; no field: no edit explains
    it. `missing`: sites that the candidate no longer has.
    """

    name: str
    file: str
    family: str
    site: str
    rules: frozenset[str]
    field: str | None
    layers: str
    value: Any
    dtype: str
    also: frozenset[str]
    missing: tuple[str, ...]

    @property
    def candidate(self) -> str:
        return f"{Path(__file__).parent / self.file}:{self.name}"


def fault(
    family: str,
    site: str,
    rules: str = "",
    field: str | None = None,
    layers: str = "",
    *,
    value: Any = None,
    dtype: str = "float32",
    also: str = "",
    missing: tuple[str, ...] = (),
) -> Callable[[Make], Make]:
    """Registers a candidate under what it must be found as; rules and also are names apart by spaces."""

    def register(make: Make) -> Make:
        file = Path(make.__code__.co_filename).name
        TABLE[make.__name__] = Fault(
            make.__name__, file, family, site, frozenset(rules.split()), field, layers, value, dtype,
            frozenset(also.split()), missing,
        )  # fmt: skip
        return make

    return register
