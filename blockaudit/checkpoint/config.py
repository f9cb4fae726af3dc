"""config.json and adapter_config.json beside the weights: plain JSON, read with a cap, never interpreted here."""

from __future__ import annotations

import os
from typing import Any

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.files import lfs_size, read_capped, reason, short
from blockaudit.checkpoint.jsontext import BadJsonError, parse_object
from blockaudit.checkpoint.links import LEADS_OUT, leads_out
from blockaudit.records.checkpoint import Fault

MAX_CONFIG = 16 * 1024 * 1024


def _invalid(name: str, why: str) -> Fault:
    return Fault("config-invalid", name, f"{name} cannot be read: {why}")


def read_config(folder: str, name: str = "config.json") -> tuple[dict[str, Any] | None, list[Fault]]:
    """Read a JSON object beside the weights.

    None and no fault where there is no such file; None and `config-invalid` where it is not a JSON object. NaN and
    Infinity are read as Python reads them, because real configs hold them. A key that is given twice with different
    values is a fault, and the last value counts, as it does for every loader.
    """
    path = os.path.join(folder, name)
    if not storage.named(path):
        return None, []
    if leads_out(folder, name):
        return None, [_invalid(name, LEADS_OUT)]
    try:
        raw = read_capped(path, MAX_CONFIG)
    except OSError as error:
        return None, [_invalid(name, reason(error))]
    except ValueError as error:
        return None, [_invalid(name, str(error))]
    if lfs_size(raw) is not None:
        return None, [_invalid(name, "it is a Git LFS pointer; fetch it with `git lfs pull`")]
    try:
        config, twice = parse_object(raw)
    except BadJsonError as error:
        return None, [_invalid(name, str(error))]
    if twice:
        text = f"{name} gives {short(twice[0])} more than once with different values; the last one counts"
        return config, [Fault("config-invalid", name, text, observed=short(twice[0]))]
    return config, []
