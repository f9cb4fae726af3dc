"""What adapter_config.json says, as far as it decides about keys and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from blockaudit.checkpoint.files import short
from blockaudit.records.checkpoint import Fault

NAME = "adapter_config.json"
# A pattern of PEFT that is nothing but the end of a module's name. Others are anybody's regular expressions, which may
# run for ever: they are not run.
_PLAIN = re.compile(r"\^?[\w.\-]+", re.ASCII)


# Of a rank or an alpha; a whole number of JSON may be longer than any float.
_LARGEST = 2**53


class Settings(msgspec.Struct, frozen=True):
    """`targets` and `saved` are None where the config gives a pattern, or nothing, in place of names."""

    kind: str
    base: str
    rank: int | None
    alpha: float | None
    ranks: dict[str, int]
    targets: tuple[str, ...] | None
    excluded: tuple[str, ...] | None
    saved: tuple[str, ...]
    layers: frozenset[int] | None
    dora: bool
    rslora: bool
    bias: str
    parameters: tuple[str, ...]
    tokens: int | None  # rows of prompts
    faults: tuple[Fault, ...] = ()
    unsaid: tuple[Fault, ...] = ()

    def expected_ranks(self, module: str) -> frozenset[int]:
        """The ranks that a module may have: one, or several where a pattern that is not run might speak of it."""
        return frozenset(_of(self.ranks, module, self.rank))

    def scale(self) -> str:
        """What the product of both matrices is multiplied by, in words; patterns aside."""
        if not self.rank or self.alpha is None:
            return "an unknown factor"
        value = self.alpha / (self.rank**0.5 if self.rslora else self.rank)
        return f"{value:.6g}" + (" (rank-stabilised)" if self.rslora else "")


def ends_with(module: str, name: str) -> bool:
    """Whether a name of target_modules is this module's, as PEFT compares them."""
    return module == name or module.endswith(f".{name}")


def _of(patterns: Mapping[str, int], module: str, default: int | None) -> list[int]:
    unsure: list[int] = []
    for pattern, value in patterns.items():
        if not _PLAIN.fullmatch(pattern):
            unsure.append(value)
        elif (module == pattern[1:]) if pattern.startswith("^") else ends_with(module, pattern):
            return [value, *unsure]
    return [*([default] if default is not None else []), *unsure]


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The settings, with a fault for every one that the kind needs and that is missing or of a wrong type."""
    faults: list[Fault] = []
    kind, base = config.get("peft_type"), config.get("base_model_name_or_path")
    if not isinstance(kind, str) or not kind:
        faults.append(_fault("peft_type", kind, "the kind of the adapter, such as LORA", "no loader knows what it is"))
        kind = ""
    lora = kind.upper() == "LORA"
    # A config that gives neither says nothing of the scale: alone that is no fault yet, on a base it is.
    silent = not {"r", "lora_alpha"} & config.keys()
    numbers: list[Fault] = []
    rank = _whole(config, "r", numbers) if lora else None
    alpha = _number(config, "lora_alpha", numbers) if lora else None
    if lora:
        _patterns(config, "alpha_pattern", float, faults)
    return Settings(
        kind=short(kind.upper(), 40),
        base=short(base) if isinstance(base, str) else "",
        rank=rank,
        alpha=alpha,
        ranks=_patterns(config, "rank_pattern", int, faults) if lora else {},
        targets=_names(config.get("target_modules")),
        excluded=_names(config.get("exclude_modules") or []),
        saved=_names(config.get("modules_to_save")) or (),
        layers=_layers(config.get("layers_to_transform")),
        dora=config.get("use_dora") is True,
        rslora=config.get("use_rslora") is True,
        bias=str(config.get("bias") or "none"),
        parameters=_names(config.get("target_parameters")) or (),
        tokens=_rows(config),
        faults=(*faults, *(() if silent else numbers)),
        unsaid=tuple(numbers) if silent else (),
    )


def _fault(key: str, found: Any, expected: str, because: str) -> Fault:
    said = "is missing" if found is None else f"is {short(repr(found), 60)}"
    text = f"{key} {said} in {NAME}: expected {expected}; {because}"
    return Fault("config-invalid", NAME, text, (), expected, found, f"{NAME}: {key}")


def _whole(config: Mapping[str, Any], key: str, faults: list[Fault]) -> int | None:
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
        return value
    faults.append(_fault(key, value, "a whole number above 0", "a loader would take its own default"))
    return None


def _number(config: Mapping[str, Any], key: str, faults: list[Fault]) -> float | None:
    value = config.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST:
        return float(value)
    faults.append(_fault(key, value, "a number above 0", "a loader would take its own default, and scale by that"))
    return None


def _patterns(config: Mapping[str, Any], key: str, kind: type, faults: list[Fault]) -> dict[str, Any]:
    value: Any = config.get(key) or {}
    allowed = (int, float) if kind is float else (int,)
    pairs = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": None}
    if all(isinstance(v, allowed) and not isinstance(v, bool) and 0 < v < _LARGEST for v in pairs.values()):
        return pairs
    faults.append(_fault(key, value, "names with numbers above 0", "no loader can use it"))
    return {}


def _names(value: Any) -> tuple[str, ...] | None:
    """A list of names; None for a pattern or anything else."""
    if not isinstance(value, list):
        return None
    return tuple(name for name in cast("list[Any]", value) if isinstance(name, str))


def _layers(value: Any) -> frozenset[int] | None:
    """Layers by number; None where all are meant."""
    numbers = cast("list[Any]", value) if isinstance(value, list) else [value]
    return frozenset(n for n in numbers if isinstance(n, int)) or None


def _rows(config: Mapping[str, Any]) -> int | None:
    tokens, parts = config.get("num_virtual_tokens"), config.get("num_transformer_submodules")
    if not isinstance(tokens, int) or abs(tokens) >= _LARGEST:
        return None
    return tokens * (parts if isinstance(parts, int) and abs(parts) < _LARGEST else 1)
