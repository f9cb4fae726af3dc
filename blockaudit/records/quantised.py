"""Quantised weights as a checkpoint stores them, and where they do not hold together."""

from __future__ import annotations

from typing import Any

import msgspec

Shape = tuple[int, ...]


class QuantisedWeight(msgspec.Struct, frozen=True, gc=False):
    """One quantised weight.

    `name` is the key that it has unquantised, `stored` the key of its packed numbers. `shape` is the one that it has
    unpacked, [out, in] as in a linear layer; None where the file does not say enough. `bits` are those of one element.
    """

    name: str
    stored: str
    scheme: str
    shape: Shape | None
    bits: int | None


class Misfit(msgspec.Struct, frozen=True):
    """Something about one key that its scheme does not allow: `problem` is a plural phrase, shared by all such keys."""

    problem: str
    key: str
    need: Any
    have: Any
    evidence: str


class Quantised(msgspec.Struct, frozen=True):
    """The quantisation that the keys show, what config.json declares, and the misfits between them.

    `scheme` is that of most weights, `none` where all are plain. `declared` says whether config has a
    quantization_config at all, `declared_method` is its quant_method as written, `known` whether that is one which is
    read here. `weights` are by `name`; `undeclared` are schemes stored that the method does not cover.
    """

    scheme: str
    declared: bool
    declared_method: str
    known: bool = True
    detected_from: str = ""
    weights: dict[str, QuantisedWeight] = {}
    undeclared: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()

    @property
    def opaque(self) -> tuple[QuantisedWeight, ...]:
        """Weights whose logical shape cannot be known."""
        return tuple(w for w in self.weights.values() if w.shape is None)
