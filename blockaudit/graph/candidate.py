"""A user's own module as the thing that is run: `FILE.py:NAME`, called as `NAME(source, *, device, dtype)`."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from blockaudit.errors import RequestError, told
from blockaudit.graph import upstream
from blockaudit.graph.record import Recording, RecordingError, record_module
from blockaudit.graph.training import Training, record_module_training
from blockaudit.graph.weightless import Weightless


class CandidateRaised(RequestError):
    """The user's own code raised; the message says what."""


def build(candidate: str, source: str | None, dtype: torch.dtype) -> torch.nn.Module:
    """The module that the user's file makes. Raises RequestError, with what went wrong in one line."""
    made = made_by(candidate, source, dtype)
    if isinstance(made, torch.nn.Module):
        return made
    raise RequestError(
        f"--candidate {candidate}: it returned an object with trace(), which has no operators to read: return "
        "the torch.nn.Module itself, or judge its traces with `blockaudit conform`"
    )


def made_by(candidate: str, source: str | None, dtype: torch.dtype, device: str = "cpu") -> Any:
    """What the user's file makes: a module, or an object with `trace`. Raises RequestError."""
    path, _, name = candidate.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise RequestError(f"--candidate {candidate!r}: expected FILE.py:NAME")
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise RequestError(f"--candidate: no such file: {path!r}")
    module: Any = _guarded(candidate, lambda: _imported(Path(path)))
    make = getattr(module, name, None)
    if not callable(make):
        raise RequestError(f"--candidate: {path} defines no callable {name!r}")
    made = _guarded(candidate, lambda: make(source, device=device, dtype=dtype))
    if not isinstance(made, torch.nn.Module) and not callable(getattr(made, "trace", None)):
        raise RequestError(f"--candidate {candidate}: {name} returned {type(made).__name__}, not a torch.nn.Module")
    return made


def _recorded(candidate: str, made: torch.nn.Module) -> Recording:
    """One forward pass of the user's module. Raises RequestError, also for what its own code raises."""
    try:
        return record_module(made)
    except RecordingError as error:
        raise RequestError(f"--candidate {candidate}: {error}") from error


def recordings(candidate: str, source: str | None) -> tuple[Recording, Recording, Training | None]:
    """The module in bfloat16, which shows the casts, in float32, whose constants are exact, and in train mode."""
    _, low = _light(candidate, source, torch.bfloat16)
    made, exact = _light(candidate, source, torch.float32)
    return low, exact, record_module_training(made)


def _light(candidate: str, source: str | None, dtype: torch.dtype) -> tuple[torch.nn.Module, Recording]:
    """The module and its recording, without the memory of large weights where its code allows that."""
    try:
        with Weightless():
            made = build(candidate, source, dtype)
        return made, record_module(made)
    except (RequestError, RecordingError):
        # Code that looks at its weights needs them; what is truly wrong with it shows again.
        made = build(candidate, source, dtype)
        return made, _recorded(candidate, made)


def _imported(path: Path) -> Any:
    spec = spec_from_file_location(f"blockaudit_candidate_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    upstream.hush()
    spec.loader.exec_module(module)
    return module


def _guarded(candidate: str, call: Any) -> Any:
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's code may raise anything at all
        raise CandidateRaised(f"--candidate {candidate}: {told(error)}") from error
