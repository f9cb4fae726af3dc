"""Where the bytes of each key lie, whatever holds them: the one place that tells the ways of storing apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from blockaudit.checkpoint.distributed import MEGATRON_CORE, TORCH
from blockaudit.checkpoint.ranges import OpenFiles, Span, span_of
from blockaudit.records.checkpoint import Checkpoint

# Raises RequestError where a key's bytes cannot be had.
SpanOf = Callable[[str], Span]


def spans_of(checkpoint: Checkpoint, files: OpenFiles) -> SpanOf:
    """The bytes of every key. `files` holds all files of the checkpoint. Raises RequestError."""
    if checkpoint.format not in (TORCH, MEGATRON_CORE):
        return partial(span_of, checkpoint)
    from blockaudit.checkpoint.distributed.spans import spans

    return spans(checkpoint, files).__getitem__
