"""mergekit's architecture files as data (mergekit 0.1.5, architecture/json_definitions.py and architecture/base.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from blockaudit.errors import RequestError


class Weight(msgspec.Struct, frozen=True):
    """One tensor: its name as a template, and names that it may have instead or shares storage with."""

    name: str
    vocabulary_axis: int | None = None
    optional: bool = False
    aliases: tuple[str, ...] | None = None
    force_dtype: str | None = None
    tied_names: tuple[str, ...] | None = None


class Layers(msgspec.Struct, frozen=True):
    """The tensors of each layer, `${layer_index}` its number."""

    weights: tuple[Weight, ...]


class Module(msgspec.Struct, frozen=True):
    """A list of layers with what stands before and after; how many layers, by a config key or by number."""

    model_type: str
    architectures: tuple[str, ...]
    pre_weights: tuple[Weight, ...]
    layer_templates: Layers
    post_weights: tuple[Weight, ...]
    num_layers_config_key: str | None = None
    override_num_layers: int | None = None
    kind: Literal["module"] = "module"


class Placed(msgspec.Struct, frozen=True):
    """A module of a larger model, and what its keys begin with there."""

    architecture: Module
    weight_prefix: str | None = None
    subfolder: str | None = None


class Modular(msgspec.Struct, frozen=True):
    """A model of several modules."""

    kind: Literal["modular"]
    modules: dict[str, Placed]
    model_type: str
    architectures: tuple[str, ...]
    tagalong_files: tuple[str, ...] | None = None
    vocab_size_config_key: str | None = None


T = TypeVar("T", Module, Modular)


def architecture(given: Any, path: str) -> tuple[str, tuple[str, ...], dict[str, Placed]]:
    """Model type, class names and modules of a parsed file. Raises RequestError, with the field at fault."""
    if not isinstance(given, Mapping) or not {"pre_weights", "modules"} & given.keys():
        raise RequestError(f"{path}: expected an architecture of mergekit: an object with layer_templates, or modules")
    if given.get("kind") == "modular":  # pyright: ignore[reportUnknownMemberType]
        whole = _read(given, Modular, path)
        return whole.model_type, whole.architectures, whole.modules
    one = _read(given, Module, path)
    return one.model_type, one.architectures, {"decoder": Placed(one)}


def _read(given: Any, kind: type[T], path: str) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"{path}: {error}") from error


# Where each record lies in the file: `*` is any key or number.
_KNOWN: dict[tuple[str, ...], type[msgspec.Struct]] = {
    ("modules", "*"): Placed,
    ("modules", "*", "architecture"): Module,
    ("layer_templates",): Layers,
    ("layer_templates", "weights", "*"): Weight,
    ("pre_weights", "*"): Weight,
    ("post_weights", "*"): Weight,
}


def strangers(given: Any) -> list[str]:
    """Every field that no record knows, by its place, list numbers left out; each once."""
    found: dict[str, None] = {}
    _look(given, (), found)
    return list(found)


def _look(given: Any, place: tuple[str, ...], found: dict[str, None]) -> None:
    if isinstance(given, list):
        for one in given:  # pyright: ignore[reportUnknownVariableType]
            _look(one, (*place, "*"), found)
    elif isinstance(given, dict):
        fields = _fields(place, given)  # pyright: ignore[reportUnknownArgumentType]
        for name, value in given.items():  # pyright: ignore[reportUnknownVariableType]
            if fields is not None and name not in fields:
                found[".".join(w for w in (*place, str(name)) if w != "*")] = None  # pyright: ignore[reportUnknownArgumentType]
            else:
                _look(value, (*place, "*" if fields is None else str(name)), found)  # pyright: ignore[reportUnknownArgumentType]


def _fields(place: tuple[str, ...], given: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The fields of the record at a place; None for an object whose keys are names."""
    inner = place[3:] if place[:1] == ("modules",) and len(place) > 3 else place
    if not place:
        return (Modular if given.get("kind") == "modular" else Module).__struct_fields__
    kind = _KNOWN.get(place) or _KNOWN.get(inner)
    return None if kind is None else kind.__struct_fields__
