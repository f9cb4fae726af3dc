"""Values of config keys under which the target's contract is the source's: tried, and kept where the two then agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit.manifest.bind import bind
from blockaudit.manifest.diff import Difference
from blockaudit.manifest.load import LoadedManifest
from blockaudit.migrate.check.differences import changed, lost, said
from blockaudit.migrate.draft.configs import preferred
from blockaudit.migrate.draft.probe import spellings
from blockaudit.migrate.draft.records import Undecided
from blockaudit.migrate.work import Work
from blockaudit.records.manifest import Manifest

_LITERAL = re.compile(r"'([^']{1,60})'")
_MOST = 64


def agreeing(work: Work) -> tuple[dict[str, Any], list[Undecided]]:
    """A value for each key of the target's config that brings every field which reads it to what the source has.

    What is tried: the source's values of those fields, yes, no, null, and the words that the target's manifest asks
    for. Where none does, a key that is absent is given its class's default, so that the difference is told as one of
    the function.
    """
    found: dict[str, Any] = {}
    undecided: list[Undecided] = []
    tried: set[str] = set()
    while (key := next((k for k in _open(work) if k not in tried), None)) is not None:
        tried.add(key)
        name, fields = _spelt(work, key), _reading(work, key)
        value = next((v for v in _candidates(work, fields) if _agrees(work, name, v, fields)), _NONE)
        if value is _NONE:
            if not _default(work, key, fields):
                continue  # the key is there, and what it gives is another function: the check says so
            undecided.append(_unsaid(work, name, fields))
            implied = said(work.target, fields[0].field)
            value = None if implied is None else implied.value
        found[name] = value
        work = with_value(work, name, value)
    return found, undecided


_NONE: Any = object()


def with_value(work: Work, key: str, value: Any) -> Work:
    """The work with one value in the target's config, as far as contracts are compared."""
    loaded, bound = _target(work), work.target.bound
    config = {**work.carried.config, key: value}  # a dotted key is looked for as it stands first
    named = None if bound is None else bound.class_name
    target = replace(work.target, bound=bind(loaded.manifest, config, class_name=named), config=config)
    return replace(work, target=target, carried=replace(work.carried, config=config))


def _target(work: Work) -> LoadedManifest:
    assert work.target.loaded is not None
    return work.target.loaded


def _differing(work: Work) -> dict[str, Difference]:
    return {d.field: d for d in (*(one for one, _ in lost(work)), *changed(work))}


def _open(work: Work) -> Iterator[str]:
    """Config keys that the target reads for a field in which it differs."""
    for field in _differing(work):
        value = said(work.target, field)
        if value is not None and not value.pinned:
            yield from value.keys


def _reading(work: Work, key: str) -> list[Difference]:
    found = ((d, said(work.target, field)) for field, d in _differing(work).items())
    return [d for d, value in found if value is not None and key in value.keys]


def _spelt(work: Work, key: str) -> str:
    """The spelling to write a key under: the one that its config has, else the one that every version reads."""
    group = (key, *spellings(_target(work).manifest).get(key, ()))
    return next((name for name in group if name in work.carried.config), preferred(group))


def _candidates(work: Work, fields: Iterable[Difference]) -> Iterator[Any]:
    values: list[Any] = [d.a for d in fields if d.a is None or isinstance(d.a, bool | int | float | str)]
    values += [True, False, None, *_words(_target(work).manifest)]
    seen: list[Any] = []
    for value in values[:_MOST]:
        if not any(value is other or (value == other and type(value) is type(other)) for other in seen):
            seen.append(value)
            yield value


def _words(manifest: Manifest) -> list[str]:
    """Words that the expressions of a manifest compare config values with."""
    text = msgspec.json.encode(replace(manifest, source="")).decode()
    return list(dict.fromkeys(_LITERAL.findall(text)))


def _agrees(work: Work, name: str, value: Any, fields: Iterable[Difference]) -> bool:
    """Whether all of these fields agree under a value, no other comes to differ, and every tensor keeps its shape.

    A value that the manifest cannot compute with agrees with nothing.
    """
    tried = with_value(work, name, value)
    before, after = set(_differing(work)), set(_differing(tried))
    if after & {d.field for d in fields} or not after <= before:
        return False
    one, two = work.target.bound, tried.target.bound
    assert one is not None
    assert two is not None
    unknown = any((read := said(tried.target, d.field)) is not None and not read.known for d in fields)
    shapes = {t.template: t.shape for t in one.expected}
    return not unknown and one.problems == two.problems and all(
        shapes.get(t.template, t.shape) == t.shape for t in two.expected
    )  # fmt: skip


def _default(work: Work, key: str, fields: list[Difference]) -> bool:
    """Whether the key is absent, and one of its fields is its default as it stands."""
    value = said(work.target, fields[0].field)
    return value is not None and key in value.implied and isinstance(value.value, bool | int | float | str)


def _unsaid(work: Work, name: str, fields: list[Difference]) -> Undecided:
    shown = ", ".join(f"{d.field} is {d.a!r} in the source and {d.b!r} in the target" for d in fields[:3])
    return Undecided(f"config.{name}", f"no value that the manifests name brings the two together: {shown}")
