"""The four manifests that are joined to a block manifest: tensor, checkpoint, training, runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from operator import mul

from blockaudit.manifest import grammar
from blockaudit.records.checkpoint_manifest import CheckpointManifest, Quantisation, StoredBuffer, StoredNorm
from blockaudit.records.runtime_manifest import RuntimeManifest
from blockaudit.records.tensor_manifest import TensorEntry, TensorManifest
from blockaudit.records.training_manifest import InitialGain, RngIdentity, TrainingDropout, TrainingManifest

BITS = {
    "float64": 64, "float32": 32, "tfloat32": 19, "bfloat16": 16, "float16": 16, "float8_e4m3": 8, "float8_e5m2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8, "bool": 8,
}  # fmt: skip
_DEVICE = re.compile(r"cpu|meta|(cuda|xpu|mps|hpu)(:\d+)?")
_TEMPLATE = re.compile(r"([^{}]|\{[a-z_][a-z0-9_]*\})+")
_AXIS = re.compile(r"\{([^{}]*)\}")


# -- tensor ----------------------------------------------------------------------------------------------------------


def tensor(manifest: TensorManifest) -> Iterator[str]:
    """Findings on a tensor manifest."""
    yield from _named(manifest.schema, "tensor-manifest", manifest.architecture_id)
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


# -- checkpoint ------------------------------------------------------------------------------------------------------


def checkpoint(manifest: CheckpointManifest) -> Iterator[str]:
    """Findings on a checkpoint manifest."""
    yield from _named(manifest.schema, "checkpoint-manifest", manifest.architecture_id)
    shapes: dict[str, list[int | str]] = {}
    for entry in manifest.tensors:
        if entry.key in shapes:
            yield f"{entry.key}: given twice"
        shapes[entry.key] = entry.shape
        yield from (f"{entry.key}: {said}" for said in _template(entry.key, manifest))
        yield from (f"{entry.key}: {said}" for side in entry.shape if isinstance(side, str) for said in _size(side))
        if entry.transpose == "in_out" and len(entry.shape) < 2:
            yield f"{entry.key}: transpose {entry.transpose} on a tensor of {len(entry.shape)} axes"
        if entry.dtype is not None and entry.dtype not in BITS:
            yield f"{entry.key}: dtype: expected one of {', '.join(BITS)}, found {entry.dtype}"
    for name, count in manifest.axes.items():
        if isinstance(count, str):
            yield from (f"axes.{name}: {said}" for said in _size(count))
        if not any(f"{{{name}}}" in key for key in shapes):
            yield f"axes.{name}: no key has it"
    yield from _shared(manifest, shapes)
    yield from _norm_keys(manifest, shapes)
    names = [buffer.key for buffer in manifest.buffers]
    yield from (f"{name}: a buffer given twice" for name in dict.fromkeys(names) if names.count(name) > 1)
    for buffer in manifest.buffers:
        yield from (f"{buffer.key}: {said}" for said in _buffer(buffer, shapes))
    if manifest.quantisation is not None:
        yield from (f"quantisation: {said}" for said in _quantisation(manifest.quantisation, shapes))


def _template(key: str, manifest: CheckpointManifest) -> Iterator[str]:
    if not _TEMPLATE.fullmatch(key):
        yield "not a key template: braces hold one axis, as in {l}"
    yield from (f"axis {{{a}}} is not in axes" for a in _AXIS.findall(key) if a not in manifest.axes)


def _size(text: str) -> Iterator[str]:
    try:
        grammar.parse(text)
    except grammar.ExpressionError as error:
        yield str(error)


def _shared(manifest: CheckpointManifest, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    target = {s.key: s.same_as for s in manifest.shared}
    for shared in manifest.shared:
        if shared.key == shared.same_as or target.get(shared.same_as) == shared.key:
            yield f"{shared.key}: {shared.how} to itself"
        elif shared.same_as not in shapes:
            yield f"{shared.key}: {shared.how} to {shared.same_as}, which is no key of this checkpoint"
        elif shared.how == "aliased" and shared.key not in shapes:
            yield f"{shared.key}: an alias is stored under both names, and this one is no key of this checkpoint"
        elif shared.key in shapes and shapes[shared.key] != shapes[shared.same_as]:
            yield f"{shared.key}: shape {shapes[shared.key]}, and {shared.same_as} has {shapes[shared.same_as]}"


def _norm_keys(manifest: CheckpointManifest, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    for norm in manifest.norms:
        yield from (f"{norm.site}: {said}" for said in _norm(norm, shapes))
    final = [n.weight for n in manifest.norms if n.site.endswith("final_norm")]
    if manifest.final_norm is not None and manifest.final_norm not in shapes:
        yield f"final_norm: {manifest.final_norm} is no key of this checkpoint"
    if final and manifest.final_norm not in final:
        yield f"final_norm: {manifest.final_norm}, and norms has {', '.join(map(str, final))}"


def _norm(norm: StoredNorm, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    for key in (norm.weight, norm.bias):
        if key is not None and key not in shapes:
            yield f"{key} is no key of this checkpoint"
    twin = norm.weight.removesuffix("weight") + "bias" if norm.weight is not None else None
    if norm.bias is None and twin in shapes:
        yield f"bias: none declared, and {twin} is a key of this checkpoint"
    if norm.weight is None and norm.bias is not None:
        yield "bias: a bias without a weight"


def _buffer(buffer: StoredBuffer, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    if buffer.state == "derived" and not buffer.derived_from:
        yield "derived_from: what is it computed from?"
    if buffer.state == "owned" and buffer.derived_from:
        yield f"derived_from: {buffer.derived_from}, and the checkpoint owns it"
    if buffer.state == "owned" and buffer.key not in shapes:
        yield "owned by the checkpoint, which has no such key"


def _quantisation(given: Quantisation, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    allowed = {
        "gptq": (2, 3, 4, 8), "awq": (4,), "bitsandbytes_8bit": (8,), "bitsandbytes_4bit": (4,), "fp8": (8,),
        "mxfp4": (4,),
    }[given.scheme]  # fmt: skip
    if given.bits not in allowed:
        yield f"bits: {given.scheme} packs {' or '.join(map(str, allowed))} bits, found {given.bits}"
    if given.scheme == "mxfp4" and given.group_size not in (None, 32):
        yield f"group_size: mxfp4 shares a scale between 32 weights, found {given.group_size}"
    if given.scheme == "awq" and given.group_size is None:
        yield "group_size: awq packs by groups"
    yield from (f"excluded: {key} is no key of this checkpoint" for key in given.excluded if key not in shapes)


# -- training --------------------------------------------------------------------------------------------------------

# What a decision must depend on, so that two that may differ are told apart and a replay finds the same.
COORDINATES = {
    "element": ("step", "microbatch", "layer", "branch", "row", "channel"),
    "channel": ("step", "microbatch", "layer", "branch", "channel"),
    "row": ("step", "microbatch", "layer", "branch", "row"),
    "example": ("step", "microbatch", "layer", "branch", "row"),
    "layer": ("step", "layer"),
}


def training(manifest: TrainingManifest) -> Iterator[str]:
    """Findings on a training manifest."""
    yield from _named(manifest.schema, "training-manifest", manifest.architecture_id)
    yield from _dropout(manifest)
    both = [site for site in manifest.recomputed if site in manifest.saved]
    yield from (f"recomputed: {site} is saved as well; one of them is dead weight" for site in both)
    if manifest.eval_modules and manifest.mode == "eval":
        yield "eval_modules: in mode eval every module is in eval; leave them out"
    if manifest.recomputed and manifest.mode == "eval":
        yield "recomputed: in mode eval there is no backward"
    for gain in manifest.initialization:
        if sum(g.group == gain.group for g in manifest.initialization) > 1:
            yield f"initialization.{gain.group}: given twice"
        yield from (f"initialization.{gain.group}: {said}" for said in _gain(gain))
    yield from _optimizer(manifest)
    yield from _counters(manifest.counters)
    auto = manifest.autocast
    if auto.enabled and auto.dtype not in ("bfloat16", "float16"):
        yield f"autocast: enabled, and casts to {auto.dtype}"
    if not auto.enabled and (auto.dtype is not None or auto.loss_scaling):
        yield "autocast: off, and a dtype or loss scaling is given"
    if auto.dtype == "float16" and not auto.loss_scaling and manifest.mode == "train":
        yield "autocast: float16 gradients underflow without loss scaling"


def _dropout(manifest: TrainingManifest) -> Iterator[str]:
    active = {owner: dropout for owner, dropout in manifest.dropout.items() if dropout.p > 0}
    for owner, dropout in manifest.dropout.items():
        if not 0 <= dropout.p < 1:
            yield f"dropout.{owner}: p {dropout.p} is not in [0, 1)"
        if owner == "drop_path" and dropout.granularity not in ("example", "layer"):
            yield f"dropout.{owner}: granularity {dropout.granularity} for a whole branch"
    if manifest.rng is not None:
        yield from _rng(manifest.rng, active, manifest)
    elif active and manifest.mode == "train":
        yield "rng: dropout acts, and nothing says what its masks are a function of"


def _rng(rng: RngIdentity, active: dict[str, TrainingDropout], manifest: TrainingManifest) -> Iterator[str]:
    if not rng.generator.strip():
        yield "rng: the generator is not named"
    if not active:
        yield "rng: given, and nothing is dropped"
    for owner, dropout in active.items():
        missing = [c for c in COORDINATES[dropout.granularity] if c not in rng.coordinates]
        if missing and rng.replay == "regenerated":
            yield f"rng: {owner} drops by {dropout.granularity}, and its identity lacks {', '.join(missing)}"
    if rng.replay == "saved_mask" and manifest.recomputed and not manifest.saved:
        yield "rng: masks are saved, and saved is empty"


def _gain(gain: InitialGain) -> Iterator[str]:
    drawn = gain.distribution not in ("zeros", "ones")
    if drawn and (gain.number is None or gain.meaning is None):
        yield f"{gain.distribution} needs its number, and what the number means"
    if not drawn and (gain.number is not None or gain.meaning is not None or gain.depth_scaled):
        yield f"{gain.distribution} takes no number"
    if gain.meaning == "bound" and gain.distribution != "uniform":
        yield f"meaning: a {gain.distribution} distribution has no bound"
    if gain.number is not None and gain.number <= 0:
        yield f"number: {gain.number} draws nothing"


def _optimizer(manifest: TrainingManifest) -> Iterator[str]:
    optimizer = manifest.optimizer
    if (optimizer is None) == (manifest.mode == "train"):
        yield f"optimizer: {'none' if optimizer is None else optimizer.name} in mode {manifest.mode}"
    if optimizer is None:
        return
    expected = {"adam": {"exp_avg", "exp_avg_sq"}, "adamw": {"exp_avg", "exp_avg_sq"}}.get(
        optimizer.name.lower(), set()
    )
    missing = sorted(expected - set(optimizer.state))
    if missing:
        yield f"optimizer: a resumed {optimizer.name} needs {', '.join(missing)}"
    if BITS[optimizer.state_dtype] < 32 and not optimizer.master_weights:
        yield f"optimizer: {optimizer.state_dtype} state and no float32 master weights lose small updates"


def _counters(counters: dict[str, int]) -> Iterator[str]:
    total = counters.get("total_steps")
    yield from (f"counters.{name}: {value} is negative" for name, value in counters.items() if value < 0)
    if "step" not in counters:
        yield "counters: a resumed schedule needs step"
    if total is not None:
        for name in ("step", "warmup_steps"):
            if counters.get(name, 0) > total:
                yield f"counters.{name}: {counters[name]} of {total} steps"


# -- runtime ---------------------------------------------------------------------------------------------------------


def runtime(manifest: RuntimeManifest) -> Iterator[str]:
    """Findings on a runtime manifest."""
    yield from _named(manifest.schema, "runtime-manifest", manifest.architecture_id)
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


def _named(schema: str, kind: str, architecture: str) -> Iterator[str]:
    if schema != f"blockaudit/{kind}/1":
        yield f"schema: expected blockaudit/{kind}/1, found {schema}"
    if not architecture.strip():
        yield "architecture_id: is empty; name the architecture"
