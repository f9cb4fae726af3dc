"""Edits of what lies between layers: embedding, its norm, the final norm, the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from blockaudit.graph.reader import Reader
from blockaudit.records.bound import BoundManifest, Resolved
from blockaudit.reference.assembly import NormSite, number, value
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.diagnosis.edits import Edit, as_site, differences, same, solved_changes
from blockaudit.trace.diagnosis.held import Held
from blockaudit.trace.diagnosis.trial import outer_norm
from blockaudit.trace.identify import identify_final, identify_scale, identify_softcap
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.outer import head_input
from blockaudit.trace.reference import Reference
from blockaudit.trace.scene import Seen

_Solved = dict[tuple[str, int | None], list[Solved]]
# The reference under another manifest.
Under = Callable[[BoundManifest], Reference]


def set_field(field: str, to: Any) -> Callable[[BoundManifest], BoundManifest]:
    """The manifest with one contract field set."""
    return lambda b: replace(b, fields={**b.fields, field: Resolved(to)})


def outer_edits(
    candidate: Candidate | None, seen: Seen, held: Held | None, solved: _Solved, under: Under
) -> list[Edit]:
    """What operators and numbers suggest of the sites of this segment.

    candidate: None where there are no operators.
    """
    found: list[Edit] = []
    for stack in seen.run.stacks:
        prefix, last = seen.scene.prefix(stack), seen.run.left(stack)
        if seen.run.begins_in(seen.segment, stack):
            found += _embedding(candidate, seen, stack)
            source = seen.sites.get(prefix + "embed")
            found += _norm(seen, f"{stack}.embed_norm", prefix + "embed_norm", source, held, solved)
        if seen.run.ends_in(seen.segment, stack):
            found += _norm(seen, f"{stack}.final_norm", prefix + "final_norm", last, held, solved)
    if "logits" in seen.sites:
        found += _logits(candidate, seen, under)
    return list({e.key: e for e in found}.values())


def _embedding(candidate: Candidate | None, seen: Seen, stack: str) -> Iterator[Edit]:
    field, scene, given = f"{stack}.embedding.scale", seen.scene, seen.sites.get(f"{seen.scene.prefix(stack)}embed")
    if field not in scene.bound.fields:
        return
    declared, scales = number(scene.bound, field), list[float]()
    if candidate is not None:
        streams = [s.stream.embedding_scale for s in candidate.program.stacks if s.name == stack]
        scales += [s for s in streams if s is not None]
    own = scene.main.embed(stack)
    if own is not None and given is not None and own.shape == given.shape and declared:
        factor = identify_scale(own.to(given.dtype), given, dtype=scene.dtype).value
        scales += [declared * factor] if isinstance(factor, float) else []
    yield from (Edit(field, declared, s, rebind=set_field(field, s)) for s in scales if not same(s, declared))


def _norm(
    seen: Seen, field: str, name: str, source: Tensor | None, held: Held | None, solved: _Solved
) -> Iterator[Edit]:
    declared, norm = outer_norm(seen.scene, field), seen.run.outer_norms().get(name)
    if declared is None:
        if norm is not None and held is not None:
            made = as_site(field, norm, None, held)
            yield Edit(f"{field}.present", False, True, outer=lambda site: made)
        return
    if name not in seen.sites:
        yield Edit(f"{field}.present", True, False, outer=lambda site: None)
        return
    if norm is not None and held is not None:
        theirs = as_site(field, norm, declared, held)
        yield from _changes(field, differences(declared, theirs.spec, theirs.weight, theirs.bias, seen.scene.low))
    yield from _changes(field, solved_changes(declared, solved.get((field, None), ())))
    if source is not None and source.shape == seen.sites[name].shape:
        w, b, _ = declared.parameters(seen.scene.weight(seen.scene.dtype))
        times = identify_final(source, seen.sites[name], declared.spec, w, b, dtype=seen.scene.dtype).value
        if times == 2:
            yield Edit(f"{field}.applied", 1, 2, outer=lambda site: site, times=2)
        elif times == 0:
            yield Edit(f"{field}.present", True, False, outer=lambda site: None)


def _changes(field: str, found: Iterator[Any]) -> Iterator[Edit]:
    def kept(change: Callable[[NormSite], NormSite]) -> Callable[[NormSite | None], NormSite | None]:
        return lambda site: None if site is None else change(site)

    for name, declared, other, change in found:
        yield Edit(f"{field}.{name}", declared, other, outer=kept(change))


def _logits(candidate: Candidate | None, seen: Seen, under: Under) -> Iterator[Edit]:
    bound = seen.scene.bound
    scale = number(bound, "logits.scale")
    cap = value(bound, "logits.softcap") if "logits.softcap" in bound.fields else None
    said: Sequence[tuple[float | None, float | None]] = []
    if candidate is not None and candidate.program.logits is not None:
        said = [Reader(candidate.recording).head(candidate.program.logits)]
    for other, softcap in (*said, *_solved_head(seen, under, scale)):
        if other is not None and not same(other, scale):
            yield Edit("logits.scale", scale, other, rebind=set_field("logits.scale", other))
        if not same(softcap, cap):
            yield Edit("logits.softcap", cap, softcap, rebind=set_field("logits.softcap", softcap))


def _solved_head(seen: Seen, under: Under, scale: float) -> Iterator[tuple[float | None, float | None]]:
    """Factor and cap between the head of the reference, without its own, and the logits."""
    scene = seen.scene
    state = head_input(scene, seen.sites, outer_norm(scene, f"{scene.run.stacks[-1]}.final_norm"))
    if state is None or not scene.main.full:
        return
    bare = under(set_field("logits.softcap", None)(scene.bound))
    raw = bare.head(state.to(bare.dtype))
    given = seen.sites["logits"]
    if raw is None or raw.shape != given.shape:
        return
    factor = identify_scale(raw.to(given.dtype), given, dtype=scene.dtype).value
    if isinstance(factor, float):
        yield scale * factor, None
        return
    found = identify_softcap(raw.to(given.dtype), given, dtype=scene.dtype).value
    if isinstance(found, float) and found > 0:
        yield scale, found
