"""Which tensors of the checkpoint a candidate's parameters really hold: by their numbers, whatever their names say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from blockaudit.records.bound import BoundManifest
from blockaudit.reference import assembly
from blockaudit.trace.weights import Weights

# How far a sum may be off in the dtype that it was taken in, as a multiple of one rounding.
_SUM = 4.0


@dataclass
class Held:
    """A candidate's parameters beside the checkpoint's. `value` gives one by its name; `constants` are its buffers."""

    bound: BoundManifest
    weights: Weights
    dtype: torch.dtype
    value: Callable[[str], Tensor]
    constants: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    _norms: list[str] | None = None

    def key(self, name: str, declared: str | None) -> str | None:
        """The key whose numbers a norm's parameter holds: declared, of its own name, or any other norm's."""
        found = self._value(name)
        if found is None:
            return declared
        first = [k for k in (declared, name) if k is not None and k in self.weights]
        return next((k for k in (*first, *self._others()) if self._same(k, found)), None)

    def constant(self, name: str) -> float | None:
        """The one number that all elements are."""
        found = self._value(name)
        if found is None or not found.numel():
            return None
        return float(found.reshape(-1)[0]) if bool((found == found.reshape(-1)[0]).all()) else None

    def shift(self, name: str, key: str) -> float | None:
        """The whole number that was added to every element of the tensor under `key`."""
        found = self._value(name)
        if found is None or found.shape != self.weights.shape(key):
            return None
        stored = self.weights.tensor(key, self.dtype).double()
        added = (found.double() - stored).mean().round()
        off = (found.double() - stored - added).abs()
        allowed = _SUM * torch.finfo(self.dtype).eps * (found.double().abs() + stored.abs()).clamp_min(1.0)
        return float(added) if added != 0 and bool((off <= allowed).all()) else None

    def _value(self, name: str) -> Tensor | None:
        try:
            return self.value(name).detach()
        except (KeyError, RuntimeError):
            return None

    def _same(self, key: str, found: Tensor) -> bool:
        if self.weights.shape(key) != tuple(found.shape):
            return False
        return torch.equal(self.weights.tensor(key, self.dtype).to(found.device, found.dtype), found)

    def _others(self) -> Iterator[str]:
        """Keys of every norm's weight, stack by stack."""
        if self._norms is None:
            self._norms = list(dict.fromkeys(k for k in _norm_keys(self.bound) if k in self.weights))
        yield from self._norms


def _norm_keys(bound: BoundManifest) -> Iterator[str]:
    spans = {s.name: s for s in bound.spans}
    for e in bound.expected:
        if e.what != "norm" or e.role != "weight":
            continue
        span = spans.get(e.stack or "")
        if "{l}" not in e.template or span is None or span.run is None:
            yield assembly.key(bound, e)
            continue
        yield from (assembly.key(bound, e, span.name, n) for n in range(span.first, span.first + span.run))
