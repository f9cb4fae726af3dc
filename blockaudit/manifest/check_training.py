"""Training manifests: what a step cannot be, and what a resumed one would miss."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.manifest.check_joined import BITS, named
from blockaudit.records.training_manifest import InitialGain, RngIdentity, TrainingDropout, TrainingManifest

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
    yield from named(manifest.schema, "training-manifest", manifest.architecture_id)
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
