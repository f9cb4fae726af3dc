"""The tensors of one owner in one layer, by role: read where they are used and not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from blockaudit.records.bound import BoundManifest, ExpectedTensor
from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference.assembly import UnresolvedError, key, spec
from blockaudit.reference.norms import apply, released

# A tensor of the checkpoint by its full key.
Weights = Callable[[str], Tensor]


class Source:
    """Tensors of a checkpoint by their full keys. A subclass may know a way to a matrix that needs less room."""

    def __init__(self, whole: Weights) -> None:
        self._whole = whole

    def __call__(self, key: str) -> Tensor:
        return self._whole(key)

    def rows(self, key: str, ids: Tensor) -> Tensor:
        """Rows of a matrix [rows, ...] by number, [*ids.shape, ...]."""
        return self._whole(key)[ids]

    def blocks(self, key: str) -> Iterator[Tensor]:
        """A matrix [rows, ...] in blocks of rows that lie one behind the other."""
        yield self._whole(key)


def normed(norm: NormSpec, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The norm of x: by its formula, and in a low dtype as the declared numerics run it, rounded to that dtype."""
    low = x.dtype in (torch.bfloat16, torch.float16)
    return (released if low else apply)(norm, x, weight, bias).to(x.dtype)


class Tensors:
    """What a branch, an embedding or a part owns. `weights` is asked at each use: a layer's weights may be freed."""

    def __init__(
        self, bound: BoundManifest, weights: Weights, owner: str, stack: str | None = None, layer: int | None = None
    ) -> None:
        self.owner = owner
        self._bound = bound
        self._weights = weights if isinstance(weights, Source) else Source(weights)
        self._where = (stack, layer)
        # Of several names for one tensor (a stack's own embedding and the shared one) the last is the one that is used.
        self._roles = {e.role: e for e in bound.expected if e.owner == owner}

    def has(self, role: str) -> bool:
        """Whether the owner has this tensor."""
        return role in self._roles

    def width(self, role: str) -> int | None:
        """The length of its last axis."""
        return self._roles[role].shape[-1]

    def get(self, role: str, **axes: int) -> Tensor:
        """The tensor itself, or the one whose storage it shares. `axes`: the expert."""
        return self._weights(self._named(role, axes))

    def rows(self, role: str, ids: Tensor) -> Tensor:
        """Rows of a table by number, [*ids.shape, ...]."""
        return self._weights.rows(self._named(role, {}), ids)

    def _named(self, role: str, axes: dict[str, int]) -> str:
        expected = self._roles.get(role)
        if expected is None:
            raise UnresolvedError(f"{self.owner}: the manifest has no tensor {role!r}")
        return self._key(expected, axes)

    def _key(self, expected: ExpectedTensor, axes: dict[str, int]) -> str:
        while expected.tied_to is not None and expected.tied is not None and expected.tied.value is True:
            other = next((e for e in self._bound.expected if e.template == expected.tied_to), None)
            if other is None:
                break
            expected = other
        return key(self._bound, expected, *self._where, **axes)

    def linear(self, role: str, x: Tensor, **axes: int) -> Tensor:
        """The product of x [..., in] and the matrix (stored out by in, or in by out), plus its bias: [..., out]."""
        if self._roles[role].layout == "in_out":
            y = x @ self.get(role, **axes).to(x.dtype)
        else:
            blocks = self._weights.blocks(self._named(role, axes))
            parts = [x @ block.transpose(-1, -2).to(x.dtype) for block in blocks]
            y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return y + self.get(f"{role}.bias", **axes).to(x.dtype) if self.has(f"{role}.bias") else y

    def norm(self, site: str, x: Tensor) -> Tensor:
        """The norm `site` of the owner (`inner.q`) over the last axis of x; x itself where there is none."""
        field = f"{self.owner}.{site}"
        present = self._bound.fields.get(f"{field}.present")
        if present is None or not present.value:
            return x
        mine = {e.role: e for e in self._bound.expected if e.owner == field}
        weight, bias = (self._whole(mine[r]) if r in mine else None for r in ("weight", "bias"))
        return normed(spec(self._bound, field), x, weight, bias)

    def norm_width(self, site: str) -> int | None:
        """The length of the last axis of a norm's weight; None where it has none."""
        mine = [e for e in self._bound.expected if e.owner == f"{self.owner}.{site}" and e.role == "weight"]
        return mine[0].shape[-1] if mine else None

    def _whole(self, expected: ExpectedTensor) -> Tensor:
        """A norm's parameter; one that is stored head by head (StableLM), heads first."""
        if not expected.counts or expected.template.count("{") == expected.template.count("{l}"):
            return self._weights(self._key(expected, {}))
        axis, count = next((a, n) for a, n in expected.counts if a != self._inner())
        return torch.stack([self._weights(self._key(expected, {axis: n})) for n in range(count)])

    def _inner(self) -> str | None:
        found = self._bound.functions.get(f"{self._where[0]}.layer_axis")
        return None if found is None else found.value
