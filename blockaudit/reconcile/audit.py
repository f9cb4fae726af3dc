"""Everything that one audit knows when its rules are asked: rules read this and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from blockaudit.reconcile.norms import NormVectors
from blockaudit.reconcile.shapes import ShapeAccount
from blockaudit.reconcile.ties import Tie
from blockaudit.records.binding import Binding
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conformance import Conformance
from blockaudit.records.contract import ContractRow, Executed
from blockaudit.records.quantised import Quantised


class NonFiniteTensor(msgspec.Struct, frozen=True):
    """A tensor with non-finite elements: how many, and the flat index of the first where it was located."""

    key: str
    count: int
    elements: int
    first: int | None


class Reconciled(msgspec.Struct, frozen=True):
    """A checkpoint held against a manifest."""

    declared: BoundManifest
    binding: Binding
    shapes: ShapeAccount
    norms: NormVectors
    ties: tuple[Tie, ...]
    rows: tuple[ContractRow, ...]
    executed: Executed | None = None


class Audit(msgspec.Struct, frozen=True):
    """One checkpoint; `reconciled` is None where there was no manifest to hold it against.

    `config` is the part of config.json that speaks of the text stack. `nearest` is the family that the keys come
    nearest to, where none was chosen.
    """

    checkpoint: Checkpoint
    config: dict[str, Any] | None
    level: str
    reconciled: Reconciled | None = None
    nearest: str | None = None
    nearest_score: float = 0.0
    non_finite: tuple[NonFiniteTensor, ...] = ()
    alone: Executed | None = None  # what the class executes, where no manifest was chosen
    conformance: Conformance | None = None  # where the numbers were compared
    quantised: Quantised | None = None  # where no manifest was chosen

    @property
    def run(self) -> Executed | None:
        """The executed witness, where the level asks for it."""
        return self.reconciled.executed if self.reconciled is not None else self.alone

    @property
    def nested(self) -> bool:
        """Whether the audited model is the text stack of a larger one (`text_config`)."""
        return self.config is not None and self.config is not self.checkpoint.config

    @property
    def files_known(self) -> bool:
        """Whether every weight file could be read: keys of one that could not are unknown, not absent."""
        return self.checkpoint.readable and not any(f.rule == "shard-missing" for f in self.checkpoint.faults)

    @property
    def keys_known(self) -> bool:
        """Whether missing and unexpected keys mean anything: a manifest, whole files, a key in common, known depths."""
        if self.reconciled is None or not self.files_known or not self.reconciled.binding.claimed:
            return False
        # A layer count that cannot be one is its own finding: every key of the stack would be unexpected without it.
        spans = self.reconciled.declared.spans
        return self.config is None or all(s.stored is not None for s in spans if not s.ignored)
