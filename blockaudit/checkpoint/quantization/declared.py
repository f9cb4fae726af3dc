"""What config.json declares of quantisation, as written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec


class Declared(msgspec.Struct, frozen=True):
    """A quantization_config. `present` is false where config.json has none."""

    present: bool
    method: str
    raw: dict[str, Any]

    def number(self, *names: str) -> int | None:
        """The first of these fields that holds a whole number."""
        return next((v for n in names if type(v := self.raw.get(n)) is int), None)

    def text(self, name: str) -> str:
        """A field in words; empty where there is none."""
        value = self.raw.get(name)
        return value if isinstance(value, str) else ""

    def strings(self, name: str) -> list[str]:
        """A list of texts; what is none is left out."""
        value = self.raw.get(name)
        return [v for v in cast("list[Any]", value) if isinstance(v, str)] if isinstance(value, list) else []

    def dynamic(self) -> list[str]:
        """GPTQ's patterns of modules: `-:` leaves them out, others give them numbers of their own."""
        value = self.raw.get("dynamic")
        return list(cast("dict[str, Any]", value)) if isinstance(value, dict) else []

    @property
    def uniform(self) -> bool:
        """Whether one set of numbers is declared for every weight."""
        return all(p.startswith("-:") for p in self.dynamic()) and not self.raw.get("extra_config")


def declared(*configs: Mapping[str, Any] | None) -> Declared:
    """The first quantization_config of these configs (the whole one, then that of the text stack)."""
    for config in configs:
        for name in ("quantization_config", "compression_config"):
            given: Any = (config or {}).get(name)
            if isinstance(given, dict):
                raw = cast("dict[str, Any]", given)
                return Declared(True, _method(raw), raw)
    return Declared(False, "", {})


def _method(raw: dict[str, Any]) -> str:
    method = raw.get("quant_method")
    if isinstance(method, str):
        return method
    # Configs from before quant_method, as transformers reads them.
    return "bitsandbytes" if raw.get("load_in_4bit") is True or raw.get("load_in_8bit") is True else ""
