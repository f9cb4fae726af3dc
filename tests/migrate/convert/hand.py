"""Plans and sources made by hand: what a conversion does is tested apart from what a map comes to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.migrate import ops
from blockaudit.migrate.convert.document import Document
from blockaudit.migrate.convert.request import Outcome, Request
from blockaudit.migrate.convert.transaction import convert
from blockaudit.records.conversion import Conversion, MapUsed
from blockaudit.records.migration import Filled, Plan, Row, Step, TensorType
from blockaudit.records.operations import Operation
from tests.support.checkpoint import Draft, Tensor, trained, write

F32, BF16 = "F32", "BF16"


def source(folder: Path, tensors: Mapping[str, tuple[str, Sequence[int]]], shards: int = 1, **files: bytes) -> Path:
    """A checkpoint of trained-looking tensors: key -> dtype and shape. files: `name__suffix=...` beside them."""
    made = {key: trained(key, shape, dtype) for key, (dtype, shape) in tensors.items()}
    return of(folder, made, shards, **files)


def of(folder: Path, tensors: Mapping[str, Tensor], shards: int = 1, **files: bytes) -> Path:
    named = {name.replace("__", "."): data for name, data in files.items()}
    return write(Draft(dict(tensors), {"model_type": "any", "hidden_size": 8}, shards, named), folder)


def step(
    types: Mapping[str, tuple[str, Sequence[int]]],
    sources: Sequence[str],
    operations: Sequence[Operation],
    targets: Sequence[str],
    rule: int = 0,
) -> Step:
    """One rule at one place: keys in, operations, keys out, with the types worked out."""
    of_ = {key: TensorType(types[key][0], tuple(types[key][1])) for key in sources}
    before = (Row((), tuple(of_[key] for key in sources)),)
    (after,) = ops.types_after(operations, before)[-1]
    return Step(
        rule=rule,
        sources=(Row((), tuple(sources)),),
        ops=tuple(operations),
        targets=(Row((), tuple(targets)),),
        in_types=of_,
        out_types=dict(zip(targets, after.values, strict=True)),
    )


def renamed(types: Mapping[str, tuple[str, Sequence[int]]], prefix: str = "model.") -> tuple[Step, ...]:
    """Every key with a prefix before it."""
    return tuple(step(types, [key], [], [prefix + key], rule) for rule, key in enumerate(types))


def plan(
    steps: Sequence[Step],
    *,
    filled: Sequence[Filled] = (),
    verify: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Plan:
    return Plan(
        map_name="by_hand",
        map_sha256="0" * 64,
        steps=tuple(steps),
        filled=tuple(filled),
        aliases={},
        verify=dict(verify or {}),
        dropped={},
        config=dict(config or {"model_type": "other", "hidden_size": 8}),
    )


def request(source_: Path, target: Path, plan_: Plan, **options: Any) -> Request:
    return Request(
        plan=plan_,
        checkpoint=open_checkpoint(str(source_)),
        target=str(target),
        map=MapUsed("by_hand", "0" * 64, "{}"),
        manifests=(("mine", "1" * 64), ("other", "2" * 64)),
        **{"most": 10**9, **options},
    )


def run(source_: Path, target: Path, plan_: Plan, **options: Any) -> Outcome:
    return convert(request(source_, target, plan_, **options))


def loaded(folder: Path) -> dict[str, Any]:
    """Every tensor of a folder, by safetensors itself, through the index where there is one."""
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_file(folder / "model.safetensors")
    placed = json.loads(index.read_text())["weight_map"]
    files = {name: load_file(folder / name) for name in set(placed.values())}
    assert {key: name for name, held in files.items() for key in held} == placed
    return {key: files[name][key] for key, name in placed.items()}


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a folder."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def report(folder: Path) -> Conversion:
    return msgspec.json.decode((folder / "conversion-report.json").read_bytes(), type=Document).conversion


def partial(target: Path) -> Path:
    return target.parent / f".{target.name}.blockaudit-partial"
