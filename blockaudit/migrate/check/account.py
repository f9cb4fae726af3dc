"""The account of keys: each of the source consumed once, dropped or aliased; each of the target fed once or aliased."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blockaudit.migrate import optimizer, templates
from blockaudit.migrate.check.shapes import fed_by
from blockaudit.migrate.work import Work, aliased
from blockaudit.reconcile.expand import templates_of
from blockaudit.records.checkpoint import Fault


def account(work: Work) -> Iterator[Fault]:
    """`map-not-total` and `map-not-injective`."""
    yield from _consumed(work)
    yield from _fed(work)


def dropped(work: Work) -> dict[str, str]:
    """Source keys that the map leaves behind, with the reason."""
    given = [(d.key, d.why) for d in work.map.drop]
    given += [(b.key, b.why) for b in work.map.buffers if b.do == "drop"]
    left = optimizer.dropped(work.map, work.source.types)
    ranked = "" if work.map.ranks is None else "{r}/"
    return left | {
        key: why for key_, why in given for key in templates.matches(ranked + key_, work.source.types).values()
    }


def _consumed(work: Work) -> Iterator[Fault]:
    left = dropped(work)
    twice = [key for key, rules in work.taken.items() if len(rules) > 1]
    for template, keys in templates_of(twice):
        rules = work.taken[keys[0]]
        yield Fault(
            "map-not-injective",
            template,
            f"{template} of the source is consumed by rules {_listed(rules)}: a tensor is consumed once",
            tuple(keys),
            expected=1,
            observed=len(rules),
            evidence=_where(rules),
        )
    both = [key for key in left if key in work.taken]
    for template, keys in templates_of(both):
        yield Fault(
            "map-not-injective",
            template,
            f"{template} of the source is consumed by rule {work.taken[keys[0]][0]} and dropped as well",
            tuple(keys),
            evidence="drop",
        )
    shared = {*aliased(work.map, 0)} if work.map.alias else set[str]()
    free = [k for k in work.source.types if k not in work.taken and k not in left and _bare(k) not in shared]
    for template, keys in templates_of(free):
        yield Fault(
            "map-not-total",
            template,
            f"{template} of the source ({_many(keys)}) is neither consumed by a rule, nor dropped with a reason, nor "
            "an alias",
            tuple(keys),
            expected="consumed, dropped or aliased",
            observed="left over",
        )


def _fed(work: Work) -> Iterator[Fault]:
    fed, slots = work.fed, work.target.slots
    for template, keys in templates_of([k for k, rules in fed.items() if len(rules) > 1]):
        yield Fault(
            "map-not-injective",
            template,
            f"{template} of the target is fed by rules {_listed(fed[keys[0]])}: a tensor is fed once",
            tuple(keys),
            expected=1,
            observed=len(fed[keys[0]]),
            evidence=_where(fed[keys[0]]),
        )
    begun = {i.key for i in work.map.init}
    for template, keys in templates_of([k for k in fed if any(templates.bind(i, k) is not None for i in begun)]):
        yield Fault(
            "map-not-injective",
            template,
            f"{template} of the target is fed by a rule and initialised as well",
            tuple(keys),
        )
    made = {*fed, *aliased(work.map, 0)}
    for template, keys in templates_of([k for k in made if k not in slots and k in fed]):
        yield Fault(
            "map-not-total",
            template,
            f"{template} is fed, and the target's manifest has no such key ({_many(keys)})",
            tuple(keys),
            expected="a key of the target's manifest",
            observed=template,
            evidence=_where(fed[keys[0]]),
        )
    started = {k for k in slots if any(templates.bind(i, k) is not None for i in begun)}
    # What a rule would have fed that failed is told with the rule.
    failed = {k for f in work.failed for k in fed_by(work.map.rules[f.move.rule], f.move)}
    unfed = [k for k, slot in slots.items() if slot.needed and k not in made and k not in started and k not in failed]
    for template, keys in templates_of(unfed):
        yield Fault(
            "map-not-total",
            template,
            f"{template} of the target ({_many(keys)}) is fed by no rule, is no alias, and is not initialised with a "
            "reason",
            tuple(keys),
            expected="fed, aliased or initialised",
            observed="nothing",
        )


def _bare(key: str) -> str:
    rank, mark, name = key.partition("/")
    return name if mark and rank.isdigit() else key


def _listed(rules: Iterable[int]) -> str:
    return " and ".join(str(r) for r in dict.fromkeys(rules)) if len(set(rules)) > 1 else f"{min(rules)} twice"


def _where(rules: Iterable[int]) -> str:
    return ", ".join(f"rules[{r}]" for r in dict.fromkeys(rules))


def _many(keys: list[str]) -> str:
    return "1 tensor" if len(keys) == 1 else f"{len(keys)} tensors"
