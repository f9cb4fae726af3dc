"""What a schema cannot see: contradictions inside one manifest, one line each."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.manifest.check_checkpoint import checkpoint
from blockaudit.manifest.check_functions import functions
from blockaudit.manifest.check_joined import runtime, tensor
from blockaudit.manifest.check_norms import norms
from blockaudit.manifest.check_stacks import stacks
from blockaudit.manifest.check_tensors import tensors
from blockaudit.manifest.check_training import training
from blockaudit.manifest.check_values import values
from blockaudit.manifest.core import EVIDENCE_WITHOUT_SOURCE, SCHEMA
from blockaudit.records.checkpoint_manifest import CheckpointManifest
from blockaudit.records.manifest import Manifest
from blockaudit.records.runtime_manifest import RuntimeManifest
from blockaudit.records.tensor_manifest import TensorManifest
from blockaudit.records.training_manifest import TrainingManifest

AnyManifest = Manifest | TensorManifest | CheckpointManifest | TrainingManifest | RuntimeManifest


def check(manifest: AnyManifest) -> list[str]:
    """Contradictions in a manifest of any kind."""
    match manifest:
        case Manifest():
            return check_manifest(manifest)
        case TensorManifest():
            found = tensor(manifest)
        case CheckpointManifest():
            found = checkpoint(manifest)
        case TrainingManifest():
            found = training(manifest)
        case RuntimeManifest():
            found = runtime(manifest)
    return list(dict.fromkeys(found))


def check_manifest(manifest: Manifest) -> list[str]:
    """Contradictions in a block manifest."""
    broken = list(values(manifest))
    if broken:
        # With an expression that cannot be read, what follows would only repeat it.
        return list(dict.fromkeys(broken))
    found = [*_header(manifest), *stacks(manifest), *norms(manifest), *tensors(manifest), *functions(manifest)]
    return list(dict.fromkeys(found))


def _header(manifest: Manifest) -> Iterator[str]:
    if manifest.schema != SCHEMA:
        yield f"schema: expected {SCHEMA}, found {manifest.schema}"
    if not manifest.architecture_id.strip():
        yield "architecture_id: is empty; name the architecture"
    if not manifest.source.strip() and manifest.evidence_label not in EVIDENCE_WITHOUT_SOURCE:
        yield f"source: {manifest.evidence_label} evidence names no source; pin a paper, or a package and its version"
    if manifest.witness != "declared" and manifest.evidence_label not in ("source-local", "derived", "implementation"):
        yield f"evidence_label: a manifest drafted from {manifest.witness} does not rest on {manifest.evidence_label}"
    yield from _match(manifest)


def _match(manifest: Manifest) -> Iterator[str]:
    match, names = manifest.match, [s.name for s in manifest.stacks]
    used: set[str] = set()
    for name, spec in match.classes.items():
        used.update(spec.parts)
        yield from (f"match.classes.{name}: part {p!r} is not in parts" for p in spec.parts if p not in manifest.parts)
        if spec.stacks:
            yield from (f"match.classes.{name}: stack {s!r} is not in stacks" for s in spec.stacks if s not in names)
    yield from (f"parts.{part}: no class has it" for part in manifest.parts if part not in used)
    if match.base_class is not None and not match.base_prefix and match.base_class not in match.classes:
        yield f"match.base_class: {match.base_class} loses a prefix, and match.base_prefix is empty"
    if len(set(match.model_types)) < len(match.model_types):
        yield "match.model_types: a type is given twice"
