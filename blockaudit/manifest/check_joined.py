"""Tensor and runtime manifests, which are joined to a block manifest: what contradicts itself there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from operator import mul

from blockaudit.records.runtime_manifest import RuntimeManifest
from blockaudit.records.tensor_manifest import TensorEntry, TensorManifest

# Bits of every dtype that a manifest may name, as torch calls it.
BITS = {
    "float64": 64, "float32": 32, "tfloat32": 19, "bfloat16": 16, "float16": 16, "float8_e4m3": 8, "float8_e5m2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8, "bool": 8,
}  # fmt: skip
_DEVICE = re.compile(r"cpu|meta|(cuda|xpu|mps|hpu)(:\d+)?")


def named(schema: str, kind: str, architecture: str) -> Iterator[str]:
    """What every one of these manifests says first."""
    if schema != f"blockaudit/{kind}/1":
        yield f"schema: expected blockaudit/{kind}/1, found {schema}"
    if not architecture.strip():
        yield "architecture_id: is empty; name the architecture"


def tensor(manifest: TensorManifest) -> Iterator[str]:
    """Findings on a tensor manifest."""
    yield from named(manifest.schema, "tensor-manifest", manifest.architecture_id)
    owners, names = {"state", *manifest.branches}, [t.name for t in manifest.tensors]
    for entry in manifest.tensors:
        if names.count(entry.name) > 1:
            yield f"{entry.name}: given twice"
        if entry.branch_owner not in owners:
            yield f"{entry.name}: branch_owner {entry.branch_owner!r} is none of {', '.join(sorted(owners))}"
        yield from (f"{entry.name}: {said}" for said in _entry(entry))


def _entry(entry: TensorEntry) -> Iterator[str]:
    if len(entry.axes) != len(entry.shape):
        yield f"axes: {len(entry.axes)} names for {len(entry.shape)} sizes"
    if len(set(entry.axes)) < len(entry.axes):
        yield f"axes: a name comes twice in [{', '.join(entry.axes)}]"
    if entry.dtype not in BITS:
        yield f"dtype: expected one of {', '.join(BITS)}, found {entry.dtype}"
    if not _DEVICE.fullmatch(entry.device):
        yield f"device: expected cpu, meta, cuda or cuda:N, found {entry.device}"
    rows = entry.valid_rows
    if rows is not None:
        yield from (f"valid_rows: {a!r} is no axis of it" for a in rows.axes if a not in entry.axes)
        if entry.axes and entry.axes[-1] in rows.axes:
            yield f"valid_rows: {entry.axes[-1]!r} is the channel axis, which has no rows"
        if rows.given_by in ("attention_mask", "position_ids") and "sequence" not in rows.axes:
            yield f"valid_rows: {rows.given_by} speaks of the sequence, and the rows are [{', '.join(rows.axes)}]"
    yield from _stride(entry)


def _stride(entry: TensorEntry) -> Iterator[str]:
    if entry.stride is None:
        if entry.contiguity == "strided":
            yield "stride: a strided tensor gives its strides"
        return
    if len(entry.stride) != len(entry.shape):
        yield f"stride: {len(entry.stride)} strides for {len(entry.shape)} sizes"
        return
    sizes = [s for s in entry.shape if isinstance(s, int)]
    if len(sizes) < len(entry.shape):
        return
    dense = [*reversed([*accumulate(reversed(sizes[1:]), mul, initial=1)])][: len(sizes)]
    # A stride along an axis of size one is never used.
    same = all(a == b or n == 1 for a, b, n in zip(entry.stride, dense, sizes, strict=True))
    if same != (entry.contiguity == "contiguous"):
        yield f"contiguity: {entry.contiguity}, and the strides are {entry.stride} where dense ones are {dense}"


def runtime(manifest: RuntimeManifest) -> Iterator[str]:
    """Findings on a runtime manifest."""
    yield from named(manifest.schema, "runtime-manifest", manifest.architecture_id)
    if (manifest.backend == "fused") != bool(manifest.fused):
        yield f"fused: {len(manifest.fused)} kernels on the {manifest.backend} backend"
    accumulation, output = manifest.accumulation_dtype, manifest.output_dtype
    if BITS[accumulation] < BITS[output]:
        yield f"accumulation_dtype: {accumulation} is narrower than the output, {output}"
    residual, pipeline = manifest.residual_dtype, manifest.pipeline_dtype
    if BITS[residual] < BITS[output]:
        yield f"residual_dtype: {residual} drops what the branches' {output} has"
    if residual == "float32" and pipeline is not None and pipeline != residual:
        yield f"pipeline_dtype: a float32 residual crosses stages in {pipeline} and arrives another"
    yield from _ownership(manifest)
    promised = manifest.deterministic
    if promised.enabled and promised.rng == "launch_order":
        yield "deterministic: launch order differs between runs; draw from logical coordinates"
    if promised.enabled and promised.reduction_order != "fixed":
        yield "deterministic: sums in any order round differently"


def _ownership(manifest: RuntimeManifest) -> Iterator[str]:
    residual, branch = manifest.parallel.residual, manifest.parallel.branch
    if (residual.layout, residual.degree) != (branch.layout, branch.degree):
        yield (
            f"parallel: the residual is {residual.layout} over {residual.degree} and the branch {branch.layout} over "
            f"{branch.degree}; both operands of an add have one ownership map"
        )
    if not manifest.parallel.reduced_before_add and branch.degree > 1:
        yield f"parallel: partial sums are added first, so that the shortcut is added {branch.degree} times"
