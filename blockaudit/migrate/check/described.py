"""Whether anybody speaks of the source's keys: the manifest that the map names, or that of the config's family."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.migrate.sides import bare
from blockaudit.migrate.work import Work
from blockaudit.reconcile.expand import pattern, templates_of
from blockaudit.records.checkpoint import Fault


def described(work: Work) -> Iterator[Fault]:
    """A source manifest that is another's is refused; where there is none, `map-source-unknown` says so."""
    if not work.steps:
        return
    if work.map.source is not None:
        yield from _strangers(work, work.map.source)
    elif not work.source.slots:
        yield Fault(
            "map-source-unknown",
            "source",
            "no manifest speaks of the source's keys: that each norm and each matrix is what the map takes it for "
            "rests on the map's word",
            expected="a source manifest that has these keys",
            observed=None,
            evidence="source",
        )


def _strangers(work: Work, name: str) -> Iterator[Fault]:
    """Keys that rules take, and that the named manifest does not have: what it says is not said of them."""
    bound = work.source.bound
    others = [pattern(t.template) for t in bound.foreign] if bound is not None else []
    taken = [k for k in work.taken if k not in work.source.slots]
    unknown = [
        k for k in taken if not any(o.fullmatch(b) for b in bare([k]) for o in others) and k not in _states(work)
    ]
    if 2 * len(unknown) > len(work.source.types):
        # It is the manifest that is wrong, and not so many keys.
        yield Fault(
            "nothing-loaded" if len(unknown) == len(work.source.types) else "unexpected-key",
            "source",
            f"{len(unknown)} of the {len(work.source.types)} keys of the source are none of its manifest, {name}: name "
            "the manifest of this layout, or none",
            tuple(unknown),
            expected=f"keys of {name}",
            observed=unknown[0],
            evidence="source",
        )
        return
    for template, keys in templates_of(unknown):
        yield Fault(
            "unexpected-key",
            template,
            f"{template} of the source is taken by a rule, and is no key of its manifest, {name}: nobody says what it "
            "is",
            tuple(keys),
            expected=f"a key of {name}",
            observed=template,
            evidence="source",
        )


def _states(work: Work) -> set[str]:
    """Keys of optimizer state, which belong to no block."""
    return {key for step in work.states for key in step.inputs}
