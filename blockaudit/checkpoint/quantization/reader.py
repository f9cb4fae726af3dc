"""One checkpoint while its quantised weights are read: companions claimed, misfits noted, small values fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from blockaudit.checkpoint.decode import DECODERS
from blockaudit.checkpoint.quantization.declared import Declared
from blockaudit.checkpoint.values import fetch_ahead, read_block
from blockaudit.records.checkpoint import Checkpoint, TensorHeader
from blockaudit.records.quantised import Misfit, QuantisedWeight, Shape

HEADERS = "tensor headers"
CONFIG = "config.json: quantization_config"
# Elements of the largest value that is read: a shape, or a few lines of JSON.
_SMALL = 4096

Groups = Mapping[str, list[str]]


def ceil(a: int, b: int) -> int:
    """A / b, rounded up."""
    return -(-a // b)


class Reader:
    """What the schemes share: tensors, the declaration, and what has been found so far."""

    def __init__(self, checkpoint: Checkpoint, declared: Declared, groups: Groups) -> None:
        self.checkpoint, self.declared, self.groups = checkpoint, declared, groups
        self.tensors = checkpoint.tensors
        self.weights: dict[str, QuantisedWeight] = {}
        self.claimed: set[str] = set()
        self.misfits: list[Misfit] = []
        self.exponents: set[str] = set()
        # (shape of a weight, of its scale) -> what is expected of the scale
        self.expected: dict[tuple[Shape, Shape], tuple[str, str, list[Shape] | None, str]] = {}
        self.shown: dict[str, str] = {}  # scheme -> the word in the keys that showed it

    def add(self, name: str, stored: str, scheme: str, shape: Shape | None, bits: int | None, shown: str = "") -> None:
        """A quantised weight."""
        self.weights[name] = QuantisedWeight(name, stored, scheme, shape, bits)
        self.claimed.add(stored)
        self.shown.setdefault(scheme, shown or stored.rpartition(".")[2])

    def misfit(self, problem: str, key: str, need: Any, have: Any, evidence: str = HEADERS) -> None:
        """Note what a scheme does not allow."""
        self.misfits.append(Misfit(problem, key, need, have, evidence))

    def companion(
        self,
        weight: str,
        key: str,
        *allowed: Shape | None,
        required: bool = True,
        what: str = "",
        evidence: str = HEADERS,
    ) -> TensorHeader | None:
        """The tensor that belongs to a weight, claimed; a misfit where it is not there or has another shape.

        No allowed shape, or None for one, allows any.
        """
        header = self.tensors.get(key)
        what = what or key.rpartition(".")[2]
        if header is None:
            if required:
                self.misfit(f"quantised weights without {what}", weight, key, None)
            return None
        self.claimed.add(key)
        if allowed and None not in allowed and header.shape not in allowed:
            self.misfit(f"{what} of the wrong shape", key, list(allowed[0] or ()), list(header.shape), evidence)
        return header

    def surplus(self, key: str, problem: str, evidence: str = CONFIG) -> None:
        """A companion that the declaration rules out, where it is stored all the same."""
        if key in self.tensors:
            self.claimed.add(key)
            self.misfit(problem, key, None, list(self.tensors[key].shape), evidence)

    def ahead(self, keys: Iterable[str]) -> None:
        """Say which small values are going to be read."""
        fetch_ahead(self.checkpoint, [key for key in keys if key in self.tensors], _SMALL)

    def exponent(self, key: str) -> None:
        """Note a scale that is a power of two, where bytes without a dtype of their own hold it."""
        if (header := self.tensors.get(key)) is not None and header.dtype == "U8":
            self.exponents.add(key)

    def raw(self, key: str) -> bytes:
        """The bytes of a small value; empty where it is not small, or cannot be read."""
        header = self.tensors.get(key)
        if header is None or not 0 < header.nbytes <= _SMALL or key in self.checkpoint.owner[key].strided:
            return b""
        return read_block(self.checkpoint, key, 0, header.nbytes)

    def integers(self, key: str) -> Shape | None:
        """A short vector of whole numbers, none negative."""
        header, raw = self.tensors.get(key), self.raw(key)
        if header is None or header.dtype not in ("I64", "I32", "U32", "U64") or prod(header.shape) > 8 or not raw:
            return None
        values = tuple(int(v) for v in DECODERS[header.dtype](raw))
        return values if all(v >= 0 for v in values) else None

    def grouped(self, key: str, width: int, groups: int | None, size: int | None) -> Shape | None:
        """The numbers of groups along `width` inputs that are right: as declared, or as stored where none is declared.

        Scales that divide the inputs evenly into groups of another size than declared are a misfit of the size.
        """
        if size is None or not self.declared.uniform:
            return None if groups is None else (groups,)
        need = 1 if size <= 0 else ceil(width, size)
        if groups is not None and groups != need and groups and width % groups == 0:
            self.misfit("weights in groups of another size than declared", key, size, width // groups, CONFIG)
            return (groups,)
        return (need,)
