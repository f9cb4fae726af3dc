"""Faults to plant in the FP8 checkpoint, and what each of them has to be called, to the last tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from benchmarks.sparse import Layout, Tensor
from blockaudit.records.report import Finding

# A rule name and the tensors that it names, in order.
Named = tuple[str, tuple[str, ...]]

EXPERT = "model.layers.37.mlp.experts.211.down_proj.weight"
SCALE = f"{EXPERT}_scale_inv"
NORM = "model.layers.44.post_attention_layernorm.weight"
ROUTER = "model.layers.7.mlp.gate.weight"
RENAMED = "model.layers.7.mlp.router.weight"
SHARD = "model-00101-of-00164.safetensors"


@dataclass(frozen=True)
class Fault:
    """One change to a sound layout; `expected` is what it adds to the errors and warnings, made from the layout."""

    name: str
    plant: Callable[[Layout], None]
    expected: Callable[[Layout], set[Named]]


def _change(layout: Layout, key: str, make: Callable[[Tensor], Tensor | None]) -> None:
    shard, place = layout.holder(key)
    held = layout.shards[shard]
    made = make(held[place])
    held[place : place + 1] = [] if made is None else [made]


def _lose(key: str) -> Callable[[Layout], None]:
    return lambda layout: _change(layout, key, lambda tensor: None)


def _reshape(key: str, *shape: int) -> Callable[[Layout], None]:
    return lambda layout: _change(layout, key, lambda tensor: replace(tensor, shape=shape))


def _rename(key: str, new: str) -> Callable[[Layout], None]:
    return lambda layout: _change(layout, key, lambda tensor: replace(tensor, key=new))


def _total(layout: Layout) -> None:
    layout.total_size = 671_000_000_000


def _twice(layout: Layout) -> None:
    """The norm lies in a second shard too; the index names the first."""
    shard, place = layout.holder(NORM)
    layout.shards[SHARD].append(layout.shards[shard][place])
    layout.placed[NORM] = shard


def _are(*named: Named) -> Callable[[Layout], set[Named]]:
    return lambda layout: set(named)


FAULTS = (
    Fault(
        "one expert tensor lost",
        _lose(EXPERT),
        _are(("missing-key", (EXPERT,)), ("quantization-mismatch", (SCALE,))),
    ),
    Fault("one weight_scale_inv lost", _lose(SCALE), _are(("quantization-mismatch", (EXPERT,)))),
    Fault("one scale of the wrong shape", _reshape(SCALE, 56, 17), _are(("quantization-mismatch", (SCALE,)))),
    Fault("one expert of the wrong shape", _reshape(EXPERT, 7168, 2000), _are(("shape-mismatch", (EXPERT,)))),
    Fault("one norm lost", _lose(NORM), _are(("norm-missing", (NORM,)))),
    Fault(
        "one tensor renamed",
        _rename(ROUTER, RENAMED),
        _are(("missing-key", (ROUTER,)), ("unexpected-key", (RENAMED,))),
    ),
    Fault(
        "one shard missing",
        lambda layout: layout.lost_shards.add(SHARD),
        lambda layout: {("shard-missing", tuple(tensor.key for tensor in layout.shards[SHARD]))},
    ),
    Fault("a wrong total_size", _total, _are(("total-size-mismatch", ()))),
    Fault("one key in two shards", _twice, _are(("duplicate-key", (NORM,)))),
)


def named(findings: Iterable[Finding]) -> set[Named]:
    """Errors and warnings by name, with their tensors."""
    return {(finding.name, finding.tensors) for finding in findings if finding.severity != "note"}
