"""Code that a checkpoint brings along (`auto_map` in config.json): named always, run only where the user trusts it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

# What a checkpoint's folder is imported as while its classes are built.
_PACKAGE = "blockaudit_checkpoint_code"
# Entries of `auto_map` that name a model with logits, the likeliest first; AutoModel is the base class.
_MODELS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")


class UntrustedError(Exception):
    """config.json takes its class from code that may not be run; the message says what to do."""


def model_reference(data: Mapping[str, Any]) -> str | None:
    """`modeling_x.XForCausalLM`: the class that config.json takes from the checkpoint's own code, else None."""
    found = _auto_map(data)
    return next((found[k] for k in _MODELS if k in found), None) or next(
        (v for k, v in found.items() if k.startswith("AutoModel")), None
    )


def load(data: Mapping[str, Any], reference: str, folder: str | None, known: Mapping[str, Any]) -> tuple[Any, Any]:
    """(config, class) by the checkpoint's own code. Without `folder` it is not trusted.

    known: config classes of transformers by model type, where the code brings none. Raises UntrustedError, and what the
    code itself raises.
    """
    if "--" in reference:
        repository = reference.partition("--")[0]
        raise UntrustedError(
            f"config.json takes its class from another repository ({repository}), and nothing is downloaded: "
            "run a local module with --candidate FILE.py:NAME"
        )
    if folder is None:
        raise UntrustedError(
            f"config.json takes its class from the checkpoint's own code ({reference}), which is not run: pass "
            "--trust-remote-code where you trust it, or your own module as --candidate FILE.py:NAME"
        )
    values = {k: v for k, v in data.items() if k != "auto_map"}
    with _package(Path(folder)):
        own = _auto_map(data).get("AutoConfig")
        make = _class(own) if own and "--" not in own else known[str(data.get("model_type"))]
        return make.from_dict(values), _class(reference)


def _auto_map(data: Mapping[str, Any]) -> dict[str, str]:
    found: Any = data.get("auto_map")
    if not isinstance(found, dict):
        return {}
    entries = cast("dict[Any, Any]", found)
    return {k: v for k, v in entries.items() if isinstance(k, str) and isinstance(v, str)}


def _class(reference: str) -> Any:
    module, _, name = reference.rpartition(".")
    if not module or not all(part.isidentifier() for part in reference.split(".")):
        raise ImportError(f"auto_map names no class of a module: {reference!r}")
    return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)


@contextmanager
def _package(folder: Path) -> Generator[None]:
    """The folder as a package, so that its files find each other; nothing is written beside them."""
    spec = ModuleSpec(_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    package: ModuleType = module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _forget()
    sys.modules[_PACKAGE] = package
    try:
        yield
    finally:
        sys.dont_write_bytecode = written


def _forget() -> None:
    """Modules of an earlier checkpoint are not those of this one."""
    for name in [n for n in sys.modules if n == _PACKAGE or n.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
