"""Tensors that their runtime has packed (GGUF's Q8_0): no operation knows their numbers, and no target holds them."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.migrate.work import Work
from blockaudit.reconcile.expand import templates_of
from blockaudit.records.checkpoint import DTYPE_BITS, Fault


def packed(work: Work) -> Iterator[Fault]:
    """`quantization-mismatch`, once for each dtype."""
    by_dtype: dict[str, list[str]] = {}
    for key, type_ in work.source.types.items():
        if type_.dtype not in DTYPE_BITS and key in work.taken:
            by_dtype.setdefault(type_.dtype, []).append(key)
    for dtype, keys in by_dtype.items():
        template = next(iter(templates_of(keys)))[0]
        more = f" (and {len(keys) - 1} more tensors)" if len(keys) > 1 else ""
        yield Fault(
            "quantization-mismatch",
            template,
            f"{template}{more} is {dtype}, packed by its runtime: a map moves numbers: convert a file of F32, F16 "
            "or BF16",
            tuple(keys),
            expected="a dtype that safetensors has",
            observed=dtype,
        )
