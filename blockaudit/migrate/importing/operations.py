"""transformers' conversion operations in our words (transformers 5.24.0, core_model_loading.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from blockaudit.records.operations import Concat, Operation, PermuteRope, Split, Stack, Transpose


class _NoWord(Exception):
    """Our operations cannot say it."""


def translated(
    given: Sequence[Any], sources: int, targets: int, axes: tuple[str, ...]
) -> tuple[tuple[Operation, ...], str]:
    """The operations, or why they have no words of ours. `axes` are those that the new name lacks."""
    try:
        found = tuple(_one(op, sources, targets, axes) for op in given)
    except _NoWord as error:
        return (), str(error)
    if axes and not any(isinstance(op, Stack) for op in found):
        return (), f"{', '.join(axes)} is lost from the name, and nothing lays its tensors together"
    return found, ""


def _one(op: Any, sources: int, targets: int, axes: tuple[str, ...]) -> Operation:
    kind = type(op).__name__
    plain = getattr(op, "num_shards_attribute", None) is None
    if kind == "MergeModulelist" and len(axes) == 1:
        return Stack(dim=op.dim, axis=axes[0])
    if kind == "Concatenate" and plain and sources > 1:
        return Concat(dim=op.dim)
    if kind == "Chunk" and plain and targets > 1:
        return Split(dim=op.dim)
    if kind == "Transpose" and not op.check_dims:
        return Transpose(dims=(op.dim0, op.dim1))
    if kind == "PermuteForRope" and op.subconfig_key is None and op.permute_layer_names is None:
        # It takes the rows of num_attention_heads heads, of k as well.
        ends = ("half", "interleaved") if op.inverse else ("interleaved", "half")
        return PermuteRope(heads="n_heads", from_=ends[0], to=ends[1])
    raise _NoWord(f"{kind} ({_words(op)}) has no counterpart among the operations of a map")


def _words(op: Any) -> str:
    said = cast("dict[str, Any]", vars(op))
    return ", ".join(f"{name}={value!r}" for name, value in sorted(said.items())) or "no arguments"
