"""One tiny model of a class under one config: the keys and shapes that it writes, and its parameters' names."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from blockaudit.graph import live, tiny, upstream

LAYER_KEYS = tiny.LAYER_KEYS
# A change that takes the key out of the config.
ABSENT = "\0absent"


@dataclass(frozen=True)
class Sample:
    """What one config gives. `names` maps a key on disk to the parameter that it holds, where one holds its bytes."""

    data: dict[str, Any]  # the config as given
    config: dict[str, Any]  # config.json as written
    keys: dict[str, tuple[int, ...]]
    names: dict[str, str]
    parameters: dict[str, tuple[int, ...]]
    shared: dict[str, str]  # parameter -> the one whose storage it is
    head: str  # parameter that gives the logits, empty where there is none
    fields: dict[str, Any]  # attributes of the config object: absent keys have their default here


class SampleError(Exception):
    """The class cannot be built or written under this config; the message says why."""


def base(model_type: str, class_name: str) -> dict[str, Any]:
    """The config of a tiny model of the type, by the first way of filling it that works. Raises SampleError."""
    cls: Any = getattr(upstream.transformers(), class_name)
    if tiny.config_class(model_type, class_name).model_type != model_type:
        raise SampleError("it is a part of a model of many parts, whose config has a type of its own")
    reasons: list[str] = []
    for make in tiny.configs(model_type, class_name):
        try:
            config = make()
            model = cls._from_config(config).float().eval()
            live.forward(model, tiny.inputs(config, 1))
            return plain(config, class_name)
        except Exception as error:  # model code may raise anything
            reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
    raise SampleError(reasons[0])


def plain(config: Any, class_name: str) -> dict[str, Any]:
    """A config as config.json holds it."""
    data = json.loads(json.dumps(config.to_dict(), default=str))
    return {k: v for k, v in data.items() if not k.startswith("_")} | {"architectures": [class_name]}


def changed(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The config with keys set or taken out; lists of one entry a layer follow the depth."""
    new = copy.deepcopy(dict(data))
    for key, value in changes.items():
        if isinstance(value, str) and value == ABSENT:
            new.pop(key, None)
            continue
        before = data.get(key)
        new[key] = value
        if key in LAYER_KEYS and isinstance(before, int) and isinstance(value, int) and before != value:
            for name, entries in list(new.items()):
                if isinstance(entries, list) and len(cast("list[Any]", entries)) == before and name not in changes:
                    listed = cast("list[Any]", entries)
                    new[name] = [listed[i % before] for i in range(value)]
    return new


def sample(class_name: str, data: Mapping[str, Any], *, run: bool = True) -> Sample:
    """Build, run and write the class under a config. Raises SampleError."""
    import transformers

    try:
        cls: Any = getattr(transformers, class_name)
        kind: Any = transformers.CONFIG_MAPPING[data["model_type"]]
        config: Any = kind.from_dict(dict(data))
        config._attn_implementation = "eager"
        config._experts_implementation = "batched_mm"
        torch.manual_seed(5)  # pyright: ignore[reportUnknownMemberType] - untyped upstream
        with torch.no_grad():
            model = cls._from_config(config).float().eval()
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.normal_()
        if run:
            live.forward(model, tiny.inputs(config, 1))  # sizes that do not go together are no model
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            return _read(Path(folder), dict(data), model, config)
    except Exception as error:  # model code may raise anything
        text = " ".join(str(error).split())[:160]
        raise SampleError(f"{type(error).__name__}: {text}") from error


def _read(folder: Path, data: dict[str, Any], model: Any, config: Any) -> Sample:
    from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - untyped upstream

    stored: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored |= load_file(path)
    named = {**dict(model.named_parameters(remove_duplicate=False)), **_buffers(model)}
    owners: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, tensor in named.items():
        first = owners.setdefault(tensor.data_ptr() or id(tensor), name)
        if first != name:
            shared[name] = first
    by_bytes: dict[bytes, list[str]] = {}
    for name, tensor in named.items():
        if name not in shared and tensor.is_floating_point():
            by_bytes.setdefault(_bytes(tensor), []).append(name)
    names = {k: found[0] for k, v in stored.items() if len(found := by_bytes.get(_bytes(v), [])) == 1}
    return Sample(
        data=data,
        config=json.loads((folder / "config.json").read_text()),
        keys={k: tuple(v.shape) for k, v in stored.items()},
        names=names,
        parameters={k: tuple(v.shape) for k, v in named.items()},
        shared=shared,
        head=_head(model, named),
        fields=dict(cast("dict[str, Any]", vars(config))),
    )


def _head(model: Any, named: dict[str, torch.Tensor]) -> str:
    try:
        head = model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return ""
    name = next((n for n, module in model.named_modules() if module is head), None)
    return f"{name}.weight" if name is not None and f"{name}.weight" in named else ""


def _buffers(model: Any) -> dict[str, torch.Tensor]:
    """Buffers that a checkpoint holds."""
    held = set(model.state_dict())
    return {n: b for n, b in model.named_buffers() if n in held}


def _bytes(tensor: torch.Tensor) -> bytes:
    return str(tuple(tensor.shape)).encode() + tensor.detach().float().contiguous().numpy().tobytes()
