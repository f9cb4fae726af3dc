"""A migration map as loaded (`schemas/migration_map.schema.json`), and the plan that it comes to for one checkpoint."""

# ruff: noqa: RUF012 - msgspec gives every record a copy of a mutable default; ruff only knows its own base class.

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from blockaudit.records.operations import Operation
from blockaudit.records.values import Struct


class MoveRule(Struct, frozen=True, rename={"from_": "from"}):
    """Tensors that become other tensors. No `ops`: the same tensor under another name, copied byte by byte.

    Templates: `{l}`, `{e}` and every other named axis match a number, `{*}` the rest of a key. An axis that stands in
    `from` alone is collapsed by an operation that names it (`stack`), one that stands in `to` alone is spread by one.
    `keeps` declares what shapes cannot decide and no operation changes: the `axes` of a square matrix, the pairing of
    `rope` coordinates, the order of `heads` (q, k, v) along a row.
    """

    from_: str | list[str]
    to: str | list[str]
    ops: list[Operation] = []
    keeps: list[Literal["axes", "rope", "heads"]] = []
    optional: bool = False

    @property
    def sources(self) -> list[str]:
        return [self.from_] if isinstance(self.from_, str) else self.from_

    @property
    def targets(self) -> list[str]:
        return [self.to] if isinstance(self.to, str) else self.to


class Drop(Struct, frozen=True):
    """A key of the source that has no place in the target, and why not."""

    key: str
    why: str


class Init(Struct, frozen=True):
    """A key of the target that nothing feeds: `zeros`, `ones` or `recipe:NAME`, and why that is its value."""

    key: str
    value: str
    why: str


class Buffer(Struct, frozen=True):
    """State that is no parameter: carried under its own name, or dropped because the target derives it."""

    key: str
    do: Literal["carry", "drop"]
    why: str = ""


class Optimizer(Struct, frozen=True):
    """What becomes of optimizer state beside the weights.

    `carry`: each key of `moments` (`optimizer.state.exp_avg.{*}`, `{*}` the parameter's own key) moves with its
    parameter, by the same operations, all of which must only lay elements out anew. `drop`: with the reason.
    """

    do: Literal["carry", "drop"]
    moments: list[str] = []
    counters: list[str] = []
    why: str = ""


class Supplied(Struct, frozen=True):
    """A config value of the target that is read off something else than a key of the source's config.

    `tensor` with `dim`: a size of a source tensor, in elements; where the tensor is cut over `axis` (the ranks `r`), of
    all its parts together. `expr`: arithmetic over the source's config keys.
    """

    tensor: str | None = None
    dim: int = 0
    axis: str | None = None
    expr: str | None = None


class MigrationMap(Struct, frozen=True):
    """One migration map.

    `config` renames keys of the source's config; null drops one. `supply` gives what it lacks, `supply_back` what the
    source's config lacks on the way back (in words of the target's config).
    `ranks` names the files of a source that is cut over ranks (`consolidated.{r}.pth`): each key is then one per rank,
    under the axis `r`. `config_file` is where the source keeps its config, beside its weights.
    """

    schema: str
    name: str
    target: str
    source: str | None = None
    evidence: str = ""
    config: dict[str, str | None] = {}
    supply: dict[str, Any] = {}
    supply_back: dict[str, Any] = {}
    config_file: str = "config.json"
    ranks: str | None = None
    rules: list[MoveRule] = []
    alias: list[tuple[str, str]] = []
    drop: list[Drop] = []
    init: list[Init] = []
    buffers: list[Buffer] = []
    optimizer: Optimizer | None = None


# -- what a map comes to for one checkpoint ---------------------------------------------------------------------------


class TensorType(msgspec.Struct, frozen=True):
    """dtype as safetensors spells it (`BF16`) and shape in elements."""

    dtype: str
    shape: tuple[int, ...]


T = TypeVar("T")


class Row(msgspec.Struct, Generic[T], frozen=True):
    """Values at one place of the axes that are not collapsed yet: `(("e", 3),)`; `()` where there are none."""

    at: tuple[tuple[str, int], ...]
    values: tuple[T, ...]


# What operations act on: one row for each place of the open axes, each with as many values.
State = tuple[Row[T], ...]


class Step(msgspec.Struct, frozen=True):
    """One rule for one place of its shared axes: the source keys in, what is done, the target keys out.

    `ops` have their dimension symbols worked out (`heads` is a number). A step without ops copies bytes.
    `rule` counts the map's rules from 0. `in_types` and `out_types` are by key. A source key of a map with `ranks` is
    `RANK/KEY` (`0/layers.3.attention.wq.weight`).
    """

    rule: int
    sources: State[str]
    ops: tuple[Operation, ...]
    targets: State[str]
    in_types: dict[str, TensorType]
    out_types: dict[str, TensorType]

    @property
    def copies(self) -> bool:
        """Whether the bytes of one tensor are the bytes of the other."""
        return not self.ops

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(key for row in self.sources for key in row.values)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(key for row in self.targets for key in row.values)


class Filled(msgspec.Struct, frozen=True):
    """A target tensor that no source feeds, with its value (`zeros`, `ones`, `recipe:NAME`) and reason."""

    key: str
    type: TensorType
    value: str
    why: str


class Plan(msgspec.Struct, frozen=True):
    """A map that was found total, injective and consistent, for one checkpoint: everything that `convert` does.

    Steps are in the order of the target's keys as the target's layout lists them. `aliases` maps a target key that is
    not stored to the one whose storage it shares; `verify` are source keys that are consumed by being equal to another
    source key (a stored tie), key -> its twin. `config` is the target's config.json.
    """

    map_name: str
    map_sha256: str
    steps: tuple[Step, ...]
    filled: tuple[Filled, ...]
    aliases: dict[str, str]
    verify: dict[str, str]
    dropped: dict[str, str]
    config: dict[str, Any]
    config_file: str = "config.json"
