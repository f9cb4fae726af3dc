"""A user's own module as the thing that is run: `FILE.py:NAME`, called as `NAME(source, *, device, dtype)`."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from blockaudit.errors import RequestError
from blockaudit.graph.record import Recording, RecordingError, record_module


def build(candidate: str, source: str | None, dtype: torch.dtype) -> torch.nn.Module:
    """The module that the user's file makes. Raises RequestError, with what went wrong in one line."""
    path, _, name = candidate.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise RequestError(f"--candidate {candidate!r}: expected FILE.py:NAME")
    if not Path(path).is_file():
        raise RequestError(f"--candidate: no such file: {path!r}")
    module: Any = _guarded(candidate, lambda: _imported(Path(path)))
    make = getattr(module, name, None)
    if not callable(make):
        raise RequestError(f"--candidate: {path} defines no callable {name!r}")
    made = _guarded(candidate, lambda: make(source, device="cpu", dtype=dtype))
    if not isinstance(made, torch.nn.Module):
        raise RequestError(f"--candidate {candidate}: {name} returned {type(made).__name__}, not a torch.nn.Module")
    return made


def recorded(candidate: str, source: str | None, dtype: torch.dtype) -> Recording:
    """One forward pass of the user's module. Raises RequestError, also for what its own code raises."""
    made = build(candidate, source, dtype)
    try:
        return record_module(made)
    except RecordingError as error:
        raise RequestError(f"--candidate {candidate}: {error}") from error


def recordings(candidate: str, source: str | None) -> tuple[Recording, Recording]:
    """The module in bfloat16, which shows the casts, and in float32, whose constants are exact."""
    return recorded(candidate, source, torch.bfloat16), recorded(candidate, source, torch.float32)


def _imported(path: Path) -> Any:
    spec = spec_from_file_location(f"blockaudit_candidate_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _guarded(candidate: str, call: Any) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:  # a user's code may raise anything at all
        first = str(error).splitlines()[0] if str(error) else ""
        raise RequestError(f"--candidate {candidate}: {type(error).__name__}: {first}") from error
