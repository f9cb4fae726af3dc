"""A dropout that acts between a branch and its add: told by its zeros, and by what it leaves scaled up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from msgspec.structs import replace
from torch import Tensor

from blockaudit.reference.assembly import BranchPlan
from blockaudit.trace.diagnosis.edits import Edit, at
from blockaudit.trace.identify import identify_dropout
from blockaudit.trace.scene import Seen


class _Masked:
    """A branch's factor that is a mask [B, S, D] of zeros and 1 / (1 - p)."""

    def __init__(self, mask: Tensor, scale: float) -> None:
        self.mask, self.scale = mask, scale

    def __mul__(self, core: Tensor) -> Tensor:
        return core * self.mask.to(core.dtype)[: len(core)] * self.scale


def dropouts(seen: Seen) -> Iterator[Edit]:
    """A dropout of each branch whose update is what its output is, less some elements."""
    for part in seen.block.branches if seen.block is not None else ():
        core = seen.sites.get(f"{part.name}.norm_out", seen.sites.get(f"{part.name}.branch"))
        update = seen.sites.get(f"{part.name}.update")
        if core is None or update is None or core.shape != update.shape or not part.scale:
            continue
        p = identify_dropout(core * part.scale, update, dtype=seen.scene.dtype).value
        if isinstance(p, float) and p > 0:
            factor = _Masked(update != 0, part.scale / (1 - p))
            yield _edit(seen, part, factor, p)


def _edit(seen: Seen, part: BranchPlan, factor: Any, p: float) -> Edit:
    stack = part.owner.partition(".")[0]
    del seen
    return Edit(
        f"{stack}.dropout.{_OWNERS.get(part.name, part.name + '_output')}.active", False, True,
        at(part.name, lambda plan: replace(plan, scale=cast("float", factor))), f"drops by element at p {p:g}",
    )  # fmt: skip


_OWNERS = {"self_attention": "attention_output", "mlp": "mlp_output"}
