"""Dimension symbols in operations, worked out: those of the target's manifest first, then of the source's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from blockaudit.manifest import grammar
from blockaudit.migrate.ops.base import OperationError
from blockaudit.records.operations import Operation

_SIZES = ("heads", "kv_heads", "count", "size", "start", "stop", "rotary_dim")


def resolved(op: Operation, dims: Mapping[str, Any]) -> Operation:
    """The operation with its expressions as numbers. Raises OperationError."""
    changes: dict[str, Any] = {}
    for name in _SIZES:
        value = getattr(op, name, None)
        if isinstance(value, str):
            changes[name] = evaluated(value, dims)
    sizes = getattr(op, "sizes", None)
    if sizes is not None:
        changes["sizes"] = [evaluated(s, dims) if isinstance(s, str) else s for s in sizes]
    value = getattr(op, "value", None)
    if isinstance(value, str):
        changes["value"] = evaluated(value, dims)
    return replace(op, **changes) if changes else op


def evaluated(text: str, dims: Mapping[str, Any]) -> Any:
    """The value of an expression over dims. Raises OperationError."""
    try:
        unknown = sorted(n for n in grammar.symbols(text) if n not in dims)
        if unknown:
            raise OperationError(f"{text!r} needs {', '.join(unknown)}, which neither manifest gives as a number here")
        return grammar.evaluate(text, dims)
    except grammar.ExpressionError as error:
        raise OperationError(f"{text!r} cannot be computed: {error}") from error
