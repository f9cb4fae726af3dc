"""Edits that recorded values suggest where no operators are known: what shortcuts and updates were multiplied by."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from msgspec.structs import replace
from torch import Tensor

from blockaudit.reference.assembly import Block, BranchPlan
from blockaudit.trace.candidate import Sites
from blockaudit.trace.diagnosis.edits import SCALES, Edit, at, same
from blockaudit.trace.identify.solved import shortest

# Roundings that a product of a recorded value may be off, and how far its factor then is.
_ROUNDINGS = 2.0


def summed(block: Block, sites: Sites, enter: Tensor) -> Iterator[Edit]:
    """Factors of one layer's adds that differ from the declared ones."""
    for part in block.branches:
        own, state = sites.get(f"{part.name}.residual"), _shortcut(block, part, sites, enter)
        factor = None if own is None or state is None else factor_of(own, state)
        if factor is not None and not same(factor, part.shortcut_scale):
            yield Edit(
                f"{block.stack}.residual.shortcut_scale", part.shortcut_scale, factor,
                at(part.name, lambda p, f=factor: replace(p, shortcut_scale=f)), f"the shortcut of {part.name}",
            )  # fmt: skip
        core = sites.get(f"{part.name}.norm_out" if "norm_out" in part.norms else f"{part.name}.branch")
        added = sites.get(f"{part.name}.update")
        scale = None if core is None or added is None else factor_of(added, core)
        if scale is not None and not same(scale, part.scale):
            name = f"{block.stack}.residual.{SCALES.get(part.name, 'mlp')}_branch_scale"
            yield Edit(name, part.scale, scale, at(part.name, lambda p, f=scale: replace(p, scale=f)))


def _shortcut(block: Block, part: BranchPlan, sites: Sites, enter: Tensor) -> Tensor | None:
    """What the residual of a branch was made of."""
    place = block.branches.index(part)
    if block.parallel or block.normalised_shortcut or part.normalised:
        return None
    return enter if place == 0 else sites.get(f"{block.branches[place - 1].name}.state")


def factor_of(value: Tensor, of: Tensor) -> float | None:
    """The number that `of` was multiplied by to give `value`, both [..., D]; None where that is not what was done."""
    a, b = of.double(), value.double()
    square = float((a * a).sum())
    if a.shape != b.shape or not square or not bool(torch.isfinite(b).all()):
        return None
    found = float((a * b).sum()) / square
    doubt = _ROUNDINGS * torch.finfo(value.dtype).eps
    if bool(((b - found * a).abs() > doubt * (b.abs() + (found * a).abs())).any()):
        return None
    return shortest(found - abs(found) * doubt, found + abs(found) * doubt) if found else 0.0
