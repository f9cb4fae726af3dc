"""What the numbers say of every field, layer by layer, and one line for layers that say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from blockaudit.records.conformance import Identified
from blockaudit.records.layers import ranges
from blockaudit.reference import assembly
from blockaudit.reference.assembly import NormSite
from blockaudit.trace.identify.norms import identify_norm
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.run import Pass
from blockaudit.trace.scene import Seen

# Rows of one site that are looked at.
_ROWS = 64
# What only the rounding of a low dtype shows.
CASTS = ("work_dtype", "cast_order")


@dataclass
class Measurer:
    """Solves the fields of every norm that is seen. In a low dtype only what rounding alone shows is asked again."""

    work: Pass
    low: bool
    solved: dict[tuple[str, int | None], list[Solved]] = field(
        default_factory=dict["tuple[str, int | None]", "list[Solved]"]
    )

    def look(self, seen: Seen) -> None:
        """Every norm of what was seen, of which both sides are there."""
        for site, layer, x, y, ask in self._norms(seen):
            weight = seen.scene.weight(self.work.dtype)
            w, b, _ = site.parameters(weight)
            found = identify_norm(_some(x), _some(y), w, b, dtype=self.work.dtype, ask=ask, declared=site.spec)
            self.solved[site.field, layer] = [s for s in found if not self.low or s.field in CASTS]

    def _norms(
        self, seen: Seen
    ) -> Iterator[tuple[NormSite, int | None, Tensor, Tensor, Callable[[Tensor], Tensor] | None]]:
        block, layer = seen.block, seen.segment.layer
        if block is None or layer is None or seen.enter is None:
            return
        for part in block.branches:
            step = next((s for s in layer.steps if s.name == part.name), None)
            norms = {} if step is None else {
                "norm_in": step.branch.norm_in, "norm_out": step.branch.norm_out, "norm_post": step.add.norm_post,
            }  # fmt: skip
            for name, site in part.norms.items():
                at = f"{part.name}.{'state' if name == 'norm_post' else name}"
                x = assembly.source_of(block, at, seen.sites, seen.enter)
                y = seen.sites.get(at)
                if x is None or y is None or x.shape != y.shape:
                    continue
                found = norms.get(name)
                yield site, layer.number, x, y, seen.run.norm(found) if found is not None else None

    def settle(self) -> list[Identified]:
        """One line a field and value, with the layers that share it."""
        return merged(self.solved, self.work.bound.fields)


def merged(solved: Mapping[tuple[str, int | None], list[Solved]], declared: Mapping[str, Any]) -> list[Identified]:
    """Fields of all layers: the same value is one line, its interval what every layer of it allows."""
    groups: dict[tuple[str, str], list[tuple[int | None, Solved]]] = {}
    for (owner, layer), fields in solved.items():
        for one in fields:
            name = f"{owner}.{one.field}"
            groups.setdefault((name, repr(one.value)), []).append((layer, one))
    found: list[Identified] = []
    for (name, _), rows in groups.items():
        first = rows[0][1]
        value = declared[name].value if name in declared else None
        layers = ranges(layer for layer, _ in rows if layer is not None)
        found.append(Identified(name, layers, first.value, _hull([s for _, s in rows]), value, first.evidence))
    return found


def _hull(rows: list[Solved]) -> tuple[float, float] | None:
    """The interval that the layers share, or that of all where they share none."""
    known = [s.interval for s in rows if s.interval is not None]
    if not known:
        return None
    low, high = max(i[0] for i in known), min(i[1] for i in known)
    return (low, high) if low <= high else (min(i[0] for i in known), max(i[1] for i in known))


def _some(x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    return flat[:: max(1, len(flat) // _ROWS)][:_ROWS]
