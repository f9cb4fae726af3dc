"""What is noted beside the comparisons of a run: update geometry, numbers that are not finite, what nobody compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from blockaudit.records.conformance import MODES, Mode, Quantiles, SiteResult, Telemetry
from blockaudit.records.layers import ranges
from blockaudit.records.sites import order
from blockaudit.reference.assembly import Block, BranchPlan
from blockaudit.trace import telemetry
from blockaudit.trace.candidate import Sites
from blockaudit.trace.run import Pass
from blockaudit.trace.scene import Seen


@dataclass
class Notes:
    """An observer of one pass: telemetry and growth of one batch, and the rows that no router vouches for.

    `geometry` false: the updates are another pass's to note.
    """

    work: Pass
    geometry: bool = True
    telemetry: list[Telemetry] = field(default_factory=list[Telemetry])
    strayed: dict[Mode, tuple[int, int]] = field(default_factory=dict["Mode", "tuple[int, int]"])
    sites: set[str] = field(default_factory=set[str])
    layers: set[int] = field(default_factory=set[int])
    stacks: set[str] = field(default_factory=set[str])
    # RMS per token of the state that enters a stack's first layer and of the one that leaves its last.
    _ends: dict[str, tuple[Tensor, Tensor, Tensor | None]] = field(
        default_factory=dict["str", "tuple[Tensor, Tensor, Tensor | None]"]
    )

    def look(self, seen: Seen) -> None:
        """One layer, or what lies between layers."""
        self.sites |= {r.site for r in seen.results}
        layer = seen.segment.layer
        if seen.block is None or layer is None:
            return
        self.layers.add(layer.number)
        self.stacks.add(layer.stack)
        prefix = self.work.prefix(layer.stack) + f"layers.{layer.number}."
        self._count(seen, prefix)
        if not self.geometry:
            return
        valid = seen.scene.valid(layer.stack)
        if seen.enter is not None and "state" in seen.sites:
            first = self._ends[layer.stack][0] if layer.stack in self._ends else telemetry.rms(seen.enter)
            self._ends[layer.stack] = first, telemetry.rms(seen.sites["state"]), valid
        if self.work.layers is None or layer.number in self.work.layers:
            self.telemetry += updates(seen.block, seen.sites, prefix, valid)

    def growth(self) -> list[tuple[str, Quantiles]]:
        """How much larger the state leaves each stack than it entered it."""
        return [(stack, telemetry.stack_growth(*ends)) for stack, ends in self._ends.items()]

    def _count(self, seen: Seen, prefix: str) -> None:
        """Rows that were left out of a comparison for their router, the most of any site: (left out, all)."""
        layer = seen.segment.layer
        valid = seen.scene.valid(layer.stack) if layer is not None else None
        for r in seen.results:
            value = seen.sites.get(r.site.removeprefix(prefix))
            if value is None or r.probe is not None or (r.passed is None and not seen.scene.main.full):
                continue
            fits = valid is not None and valid.shape == value.shape[:-1]
            rows = int(valid.sum()) if fits and valid is not None else value[..., 0].numel()
            gone = rows - r.difference.elements // value.shape[-1]
            if gone > self.strayed.get(r.mode, (0, 0))[0]:
                self.strayed[r.mode] = gone, rows


def updates(block: Block, sites: Sites, prefix: str, valid: Tensor | None) -> Iterator[Telemetry]:
    """The geometry of every update of one layer: against what the shortcut carries into the add that it joins."""
    for parts in adds(block):
        state, after = sites.get(f"{parts[0].name}.residual"), sites.get(f"{parts[-1].name}.sum")
        for part in parts:
            u = sites.get(f"{part.name}.update")
            if state is not None and after is not None and u is not None and u.shape == state.shape == after.shape:
                yield telemetry.update(f"{prefix}{part.name}.update", state, u, after, valid)


def adds(block: Block) -> list[tuple[BranchPlan, ...]]:
    """The branches of a layer by the add that sums them."""
    return [block.branches] if block.parallel else [(b,) for b in block.branches]


def non_finite(results: Iterable[SiteResult]) -> list[tuple[str, int]]:
    """Sites at which the candidate is NaN or infinite where the reference is not: the most at once, in call order."""
    most: dict[str, int] = {}
    for r in results:
        if r.difference.non_finite:
            most[r.site] = max(most.get(r.site, 0), r.difference.non_finite)
    return sorted(most.items(), key=lambda item: order(item[0]))


def silent(
    notes: Sequence[Notes],
    modes: frozenset[Mode],
    results: Sequence[SiteResult],
    *,
    full: bool,
    stacks: Sequence[str] = (),
    unread: Sequence[str] = (),
    padding: str = "",
) -> list[str]:
    """What was not compared, and why, one sentence each.

    stacks: those that the manifest has. unread: what of the candidate could not be read. padding: why no padded rows
    were run.
    """
    said: list[str] = []
    if not full:
        said.append("the embedding, the branches and the logits are the candidate's own on both sides")
    said += _modes(modes)
    layers, ran = notes[0].work.layers, notes[0].layers
    if layers is not None and any(n not in layers for n in ran):
        inside = ranges(n for n in ran if n in layers)
        said.append(f"no layer but {inside} was compared (--layers)" if inside else "no layer was compared (--layers)")
    gone = [s for s in stacks if all(s not in n.stacks for n in notes)]
    said += [f"{stack}: none of its layers was compared{_for(unread)}" for stack in gone]
    if all("logits" not in n.sites for n in notes):
        said.append("the candidate gives no logits: it has no head")
    elif full and all(r.passed is None for r in results if r.site == "logits"):
        said.append("logits: the reference has no head of this kind")
    said += [f"padding: {padding}"] if padding else []
    return said + list(_strayed(notes))


def _for(unread: Sequence[str]) -> str:
    return f" ({unread[0]})" if unread else ""


def _modes(modes: frozenset[Mode]) -> Iterator[str]:
    left = [m for m in MODES if m not in modes]
    if left:
        rows = ", and no norm was held to probe rows" if "local" in left else ""
        yield f"{' and '.join(left)} comparisons were not asked for{rows}"


def _strayed(notes: Sequence[Notes]) -> Iterator[str]:
    worst: dict[Mode, tuple[int, int]] = {}
    for mode in MODES:
        found = [n.strayed[mode] for n in notes if mode in n.strayed]
        if found:
            worst[mode] = max(found)
    for mode, (gone, rows) in worst.items():
        yield (
            f"in {mode} mode {gone} of {rows} tokens went to other experts in the reference's arithmetic, or attend to "
            "one that did: their router is as good as undecided, and they were not judged"
        )
