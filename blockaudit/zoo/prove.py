"""Whether a drafted manifest holds: checkpoints of the class under many configs are accepted, damaged ones are not."""

from __future__ import annotations

import importlib
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockaudit import pipeline
from blockaudit.errors import RequestError
from blockaudit.graph import live, tiny
from blockaudit.graph.drafting.explore import Exploration, moved
from blockaudit.graph.drafting.samples import changed
from blockaudit.manifest import load
from blockaudit.manifest.check import check_manifest
from blockaudit.records.report import Report

# A config class may have fields that its code never reads: that is said of a sound checkpoint too.
_TRUE = ("config-field-unconsumed",)
_TOGETHER, _TRIES = 2, 10


def prove(data: dict[str, Any], found: Exploration) -> list[str]:
    """What is wrong with the manifest; empty where it holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "manifest.json"
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")
        try:
            contradictions = check_manifest(load.load(str(path)).manifest)
        except RequestError as error:
            return [str(error).replace(str(path), "manifest")]
        if contradictions:
            return contradictions
        for what, config, level in _configs(found):
            said = _held(found, config, path, level, removed=what == "base")
            if said:
                return [f"{what}: {s}" for s in said]
        match = data["match"]
        for name in (*match["classes"], *([match["base_class"]] if match["base_class"] else [])):
            said = _held(found, {**found.base.data, "architectures": [name]}, path, "headers", removed=False, name=name)
            if said:
                return [f"{name}: {s}" for s in said]
    return []


def _configs(found: Exploration) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Configs that a manifest must hold for, and the level at which it is asked."""
    base = found.base.data
    yield "base", base, "graph"
    chance = random.Random(7)
    for _ in range(_TOGETHER):
        changes = _changes(found, chance)
        yield f"together {_said(changes)}", changed(base, changes), "graph"
    for _ in range(_TRIES):
        changes = _changes(found, chance)
        yield f"together {_said(changes)}", changed(base, changes), "headers"
    for key, many in found.single.items():
        for one in many[:2]:
            value = one.data.get(key)
            if value is None or isinstance(value, bool | list) or base.get(key) is None:
                yield _said({key: value}), one.data, "headers"


def _changes(found: Exploration, chance: random.Random) -> dict[str, Any]:
    """Every second key at a value of its own."""
    changes: dict[str, Any] = {}
    for key in found.effective:
        if chance.random() < 0.5:
            changes |= moved(found, chance.choice(found.single[key]))
    return changes


def _said(changes: dict[str, Any]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in changes.items())


def _held(
    found: Exploration, config: dict[str, Any], manifest: Path, level: str, *, removed: bool, name: str = ""
) -> list[str]:
    """Findings on a checkpoint of this config, none where the class does not take it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            runs = _write(found, config, folder, name or found.class_name)
        except Exception:  # a config that the class refuses asks nothing of the manifest
            return []
        if not runs and not removed and not name:
            return []  # sizes that do not go together: such a model is written and cannot be run
        report = pipeline.inspect(folder, manifest=str(manifest), level=level)
        said = _wrong(report)
        if said or not removed:
            return said
        return _damaged(folder, manifest, report)


def _wrong(report: Report) -> list[str]:
    found = [f for f in report.findings if f.severity != "note" and f.name not in _TRUE]
    grave = [f"{f.name} at {f.subject}: {f.message}"[:300] for f in found]
    if not grave and report.verdict != "accepted":
        unknown = [r.field for r in report.contract if r.required and not r.known]
        grave = [f"{report.verdict}: {', '.join(unknown)[:200]}"]
    return grave


def _write(found: Exploration, config: dict[str, Any], folder: str, class_name: str) -> bool:
    """Save a model; whether it runs."""
    import torch
    import transformers

    kind: Any = transformers.CONFIG_MAPPING[found.model_type]
    made = kind.from_dict(config)
    torch.manual_seed(9)  # pyright: ignore[reportUnknownMemberType] - untyped upstream
    cls: Any = getattr(transformers, class_name)
    model = cls._from_config(made).float().eval()
    live.randomise(model)
    model.save_pretrained(folder)
    try:
        live.forward(model, tiny.inputs(made, 1))
    except Exception:  # model code may raise anything
        return False
    return True


def _damaged(folder: str, manifest: Path, report: Report) -> list[str]:
    """A norm is taken out of the file: the audit must reject it."""
    library: Any = importlib.import_module("safetensors.torch")

    path = Path(folder) / "model.safetensors"
    tensors: dict[str, Any] = library.load_file(path)
    rows = [r for r in report.contract if r.field.endswith(".present") and "stored" in r.statements]
    norms = [r.statements["stored"].evidence for r in rows]
    wanted = next((n for n in norms if n in tensors), None)
    if wanted is None:
        return [] if not any(k in t for t in norms for k in tensors) else ["no norm was seen in the file"]
    del tensors[wanted]
    library.save_file(tensors, path, metadata={"format": "pt"})
    again = pipeline.inspect(folder, manifest=str(manifest))
    return [] if again.verdict == "rejected" else [f"without {wanted} it is {again.verdict}"]
