"""The residual algebra on the numbers of a run: the states and updates of the candidate, as they were captured."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from msgspec.structs import replace
from torch import Tensor

from blockaudit.records.conformance import Law
from blockaudit.reference import algebra, assembly
from blockaudit.reference.assembly import Block, BranchPlan
from blockaudit.trace.candidate import Sites
from blockaudit.trace.notes import adds
from blockaudit.trace.scene import Seen

# Tokens that are kept of every add: the laws hold row by row, and a run holds no more than a layer.
_ROWS = 64


@dataclass
class _Stack:
    """The adds of one stack in order, each value [rows, D]."""

    enter: list[Tensor] = field(default_factory=list[Tensor])  # the state, before the shortcut's factor
    shortcut: list[Tensor] = field(default_factory=list[Tensor])
    updates: list[list[Tensor]] = field(default_factory=list["list[Tensor]"])  # before the branch's factor
    sums: list[Tensor] = field(default_factory=list[Tensor])
    a: list[float] = field(default_factory=list[float])
    b: list[float] = field(default_factory=list[float])
    between: str = ""  # what stands between two adds, so that no sum over depth crosses it
    broken: str = ""


@dataclass
class Laws:
    """An observer that keeps a few rows of every add (of the float32 pass), and holds the algebra against them."""

    stacks: dict[str, _Stack] = field(default_factory=dict[str, _Stack])

    def look(self, seen: Seen) -> None:
        """One layer."""
        layer, block = seen.segment.layer, seen.block
        if layer is None or block is None or seen.enter is None:
            return
        stack = self.stacks.setdefault(layer.stack, _Stack())
        for parts in adds(block):
            if not _kept(stack, block, parts, seen.sites, seen.enter) and not stack.broken:
                stack.broken = (
                    f"layers.{layer.number}.{parts[0].name}: the candidate does not show every term of the add"
                )

    def settle(self) -> tuple[list[Law], list[str]]:
        """The laws on FP64 fixtures and on every stack, and what could not be held to them."""
        found = [replace(law, name=f"{law.name}, FP64 fixture") for law in algebra.check()]
        silent: list[str] = []
        for name, stack in self.stacks.items():
            if stack.broken:
                silent.append(f"algebra of {name}: {stack.broken}")
                continue
            found += [replace(law, name=f"{law.name}, {name}") for law in _of(stack)]
            if stack.between:
                silent.append(f"algebra of {name}: energy alone: {stack.between}")
        return found, silent


def _kept(stack: _Stack, block: Block, parts: tuple[BranchPlan, ...], sites: Sites, enter: Tensor) -> bool:
    first, last = parts[0], parts[-1]
    x = assembly.entering(block, first, sites, enter)
    shortcut, total = sites.get(f"{first.name}.residual"), sites.get(f"{last.name}.sum")
    terms = [_term(part, sites) for part in parts]
    if x is None or shortcut is None or total is None or any(t is None for t in terms):
        return False
    scales = {p.scale for p in parts}
    if not stack.between:
        stack.between = _between(stack, block, parts, _some(x))
    if len(scales) > 1:
        terms = [sites.get(f"{p.name}.update") for p in parts]
    stack.enter.append(_some(x))
    stack.shortcut.append(_some(shortcut))
    stack.updates.append([_some(t) for t in terms if t is not None])
    stack.sums.append(_some(total))
    stack.a.append(first.shortcut_scale)
    stack.b.append(first.scale if len(scales) == 1 else 1.0)
    return True


def _between(stack: _Stack, block: Block, parts: tuple[BranchPlan, ...], enter: Tensor) -> str:
    """Why no sum over depth crosses an add and what comes before it; empty where one does."""
    if "norm_post" in parts[-1].norms:
        return "a norm stands between two adds"
    if block.normalised_shortcut:
        return "the shortcut carries the normalised state"
    if block.update != "add" or len({p.scale for p in parts}) > 1:
        return "the update is not one sum with one factor"
    if stack.sums and not torch.equal(stack.sums[-1].nan_to_num(), enter.nan_to_num()):
        return "the state changes between two adds"
    return ""


def _term(part: BranchPlan, sites: Sites) -> Tensor | None:
    """What the branch's factor multiplies."""
    if part.scale == 1:
        return sites.get(f"{part.name}.update")
    return sites.get(f"{part.name}.{'norm_out' if 'norm_out' in part.norms else 'branch'}")


def _of(stack: _Stack) -> list[Law]:
    if stack.between:
        # The shortcut as it was used: with its factor in it.
        ones = [1.0] * len(stack.sums)
        return [algebra.energy(stack.shortcut, stack.updates, stack.sums, ones, stack.b)]
    return list(algebra.on_stack([*stack.enter, stack.sums[-1]], stack.updates, stack.a, stack.b))


def _some(x: Tensor) -> Tensor:
    """Some rows [n, D] of a value, evenly taken, on the CPU."""
    flat = x.detach().reshape(-1, x.shape[-1])
    return flat[:: max(1, len(flat) // _ROWS)][:_ROWS].cpu()
