"""The recording in train mode: every dropout acts, and its probability says which setting it came from.

In eval, or where p is zero, a dropout leaves no operator. So each config key that names a dropout gets a probability
of its own near one half, and a module that would not drop gets one half.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from blockaudit.graph import record
from blockaudit.graph.record import Recording, RecordingError

# Probabilities this far apart stay apart in every dtype that computes with them; no model asks for one of them.
_STEP = 1 / 4096
_STILL = 0.5 - _STEP  # of a module that would not drop
# Attributes that are a probability even where a whole number stands there.
_RATE = re.compile(r"(pdrop|drop(out)?(_?(p|prob|rate|path))?)$")
_SKIPS_LAYERS = ("layerdrop", "layer_drop")


@dataclass
class Settings:
    """Which probability stands for which setting, and what the setting was before: p -> (name, value)."""

    forced: dict[float, tuple[str, float]] = field(default_factory=dict[float, tuple[str, float]])

    def config(self, config: Any, prefix: str = "") -> None:
        """Give each dropout of a config a probability that no other has, and skip no layer."""
        fields = cast("dict[str, Any]", vars(config))
        for key, value in list(fields.items()):
            if hasattr(value, "model_type") and hasattr(value, "to_dict"):
                self.config(value, f"{prefix}{key}.")
            if "drop" not in key or not isinstance(value, int | float) or isinstance(value, bool):
                continue
            p = 0.5 + (len(self.forced) + 1) * _STEP
            skips = any(word in key for word in _SKIPS_LAYERS)
            try:
                setattr(config, key, 0.0 if skips else p)
            except Exception:  # a config class checks its fields as it likes: MPT's is a whole number
                continue  # the modules are set all the same
            if not skips:
                self.forced[p] = (f"config {prefix}{key}", float(value))

    def modules(self, model: torch.nn.Module) -> None:
        """Let every module of a model drop that would not."""
        self.forced[_STILL] = ("the module", 0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p == 0:  # pyright: ignore[reportPrivateUsage]
                module.p = _STILL
            for name, value in list(vars(module).items()):
                skips = any(word in name for word in _SKIPS_LAYERS)
                rate = type(value) is float or (type(value) is int and _RATE.search(name))
                if "drop" in name and rate and (value == 0 or skips):
                    setattr(module, name, 0.0 if skips else _STILL)

    def original(self, p: float) -> tuple[str, float]:
        """(what set a probability that was recorded, its value): the module itself where nothing was forced."""
        near = min(self.forced, key=lambda f: abs(f - p), default=None)
        if near is not None and abs(near - p) < _STEP / 4:
            return self.forced[near]
        return "the module", p


@dataclass(frozen=True)
class Training:
    """A recording in train mode, and what its probabilities stand for."""

    recording: Recording
    settings: Settings


class _Plain(TorchFunctionMode):
    """Dropout as one operator, and no layer skipped by chance."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            x, p, training, inplace = _dropout_arguments(*args, **kwargs)
            if training and not inplace and 0 < p < 1:
                return torch.native_dropout(x, p, True)[0]
        if func is torch.rand and (args == ((),) or args == ([],)):
            return 1.0  # BART and OPT draw a number for each layer and skip the layer where it is small
        return func(*args, **kwargs)


def _dropout_arguments(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[Any, float, bool, bool]:
    return input, p, training, inplace


def record_training(config: Mapping[str, Any], code: str | None = None) -> Training | None:
    """The class that `config` names, in train mode; None where it cannot be run so. code: as `record` takes it."""
    settings = Settings()

    def prepare(model: Any) -> None:
        settings.modules(model)
        model.train()

    try:
        with _Plain():
            return Training(record.record(config, torch.bfloat16, settings.config, prepare, code), settings)
    except RecordingError:
        return None


def record_module_training(module: torch.nn.Module) -> Training | None:
    """A user's module in train mode, with its own probabilities where they act; None where it cannot be run so."""
    settings = Settings()
    settings.modules(module)
    try:
        with _Plain():
            return Training(record.record_module(module, training=True), settings)
    except RecordingError:
        return None
