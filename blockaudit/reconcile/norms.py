"""What the small norm vectors say of themselves: statistics over the whole stack, shared vectors, non-finite values."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from blockaudit.checkpoint.values import VectorStats, fetch_ahead, read_vector
from blockaudit.reconcile import expand
from blockaudit.records.binding import Binding
from blockaudit.records.checkpoint import Checkpoint

# A learned gain of a norm starts at the value that makes the norm neutral and seldom leaves it everywhere at once.
_NEAR = 0.3
# Roles of norm tensors that are read.
_READ = ("weight", "bias", "num_batches_tracked")


class NormVectors(msgspec.Struct, frozen=True):
    """Statistics of every norm vector that was read, by canonical key, with the contract subject that owns it."""

    stats: dict[str, VectorStats]
    owner: dict[str, str]
    role: dict[str, str]

    def weights(self) -> dict[str, VectorStats]:
        return {k: s for k, s in self.stats.items() if self.role[k] == "weight"}


def read_norms(checkpoint: Checkpoint, binding: Binding) -> NormVectors:
    """Read the vectors of every bound norm (positioned reads of a few kB each)."""
    stats: dict[str, VectorStats] = {}
    owner: dict[str, str] = {}
    role: dict[str, str] = {}
    norms = [t.expected for t in binding.templates if t.expected.what == "norm" and t.expected.role in _READ]
    stored = [(key, e) for e in norms for key in expand.keys(e) if key in binding.tensors]
    fetch_ahead(checkpoint, [binding.stored(key) for key, _ in stored])
    for key, expected in stored:
        # Only of a counter does anybody ask the maximum.
        read = read_vector(checkpoint, binding.stored(key), extremes=expected.role == "num_batches_tracked")
        if read is not None:
            stats[key], owner[key], role[key] = read, expected.owner, expected.role
    return NormVectors(stats, owner, role)


def offset_by_statistics(weights: Iterable[VectorStats]) -> int | None:
    """0 where every gain of the stack lies about one, 1 where every one lies about zero; None where they do not say.

    The pattern must hold over the whole stack: single layers of trained models stray far from their start.
    """
    means = [s.mean for s in weights if s.count and not s.non_finite]
    if len(means) < 2:
        return None
    if all(abs(m) <= _NEAR for m in means):
        return 1
    if all(abs(m - 1) <= _NEAR for m in means):
        return 0
    return None


def shared(binding: Binding, vectors: NormVectors) -> list[tuple[str, str]]:
    """Pairs of norm weights of different sites that hold the very same trained numbers."""
    by_digest: dict[bytes, list[str]] = {}
    for key, stats in vectors.weights().items():
        if not stats.constant and stats.count >= 8:
            by_digest.setdefault(stats.digest, []).append(key)
    return [
        (keys[0], other)
        for keys in by_digest.values()
        for other in keys[1:]
        if binding.tensors[keys[0]].shape == binding.tensors[other].shape
    ]
