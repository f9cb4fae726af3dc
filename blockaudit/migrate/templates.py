"""Templates of keys: `{l}` and other named axes match a number, `{*}` the rest of a key.

`{l+2}` is a number that is two more than the axis is: layer 0 under the key `sequential.2`. In place of an axis a
dimension symbol of the manifests may stand (`{n_layers+3}`): `placed` puts its number there before keys are matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

# Axis name to its number; `*` to the text that it matched.
Binding = tuple[tuple[str, int | str], ...]

AXIS = re.compile(r"\{(\w+|\*)(?:\+[0-9]{1,6})?\}")
# The longest key that is held to a template with several `{*}`, which takes time by the square of its length.
_LONGEST = 4096
_SHIFTED = re.compile(r"\{(\w+|\*)(?:\+([0-9]{1,6}))?\}")


def axes(template: str) -> tuple[str, ...]:
    """The axes of a template, in order of appearance, each once."""
    return tuple(dict.fromkeys(AXIS.findall(template)))


def placed(template: str, dims: Mapping[str, Any]) -> str:
    """The template with every dimension symbol in it replaced by its number; axes stay."""

    def number(m: re.Match[str]) -> str:
        value: object = dims.get(m[1])
        if not isinstance(value, int) or isinstance(value, bool):
            return m[0]
        return str(value + int(m[2] or 0))

    return _SHIFTED.sub(number, template)


@cache
def _pattern(template: str) -> tuple[re.Pattern[str], tuple[tuple[str, int], ...]]:
    """What keys look like, and of each group in it the axis and how far the number in a key is from it."""
    groups: list[tuple[str, int]] = []
    text, end = "", 0
    for m in _SHIFTED.finditer(template):
        text += re.escape(template[end : m.start()])
        if m[1] != "*":
            # Without leading zeros: a number that is written back must be the text that was read. All of its digits
            # or none (atomic): templates are a user's, and must not send the matcher through every way to share them.
            text += "((?>0|[1-9][0-9]{0,8}))"
            groups.append((m[1], int(m[2] or 0)))
        elif ("*", 0) in groups:
            text += "(?P=rest)"
        else:
            text += "(?P<rest>.+)"
            groups.append(("*", 0))
        end = m.end()
    return re.compile(text + re.escape(template[end:])), tuple(groups)


def bind(template: str, key: str) -> Binding | None:
    """What the axes of a template are in a key; None where it does not match. Sorted by name."""
    pattern, groups = _pattern(template)
    found = None if len(key) > _LONGEST and template.count("{*}") > 1 else pattern.fullmatch(key)
    if found is None:
        return None
    said: dict[str, int | str] = {}
    for (name, shift), text in zip(groups, found.groups(), strict=True):
        value = text if name == "*" else int(text) - shift
        if said.setdefault(name, value) != value or (isinstance(value, int) and value < 0):
            return None
    return tuple(sorted(said.items()))


def matches(template: str, keys: Iterable[str]) -> dict[Binding, str]:
    """Every key that a template matches, by what its axes are."""
    head, tail = AXIS.split(template)[0], AXIS.split(template)[-1]
    found: dict[Binding, str] = {}
    for key in keys:
        if key.startswith(head) and key.endswith(tail):
            binding = bind(template, key)
            if binding is not None:
                found[binding] = key
    return found


def fill(template: str, binding: Binding) -> str:
    """The key that a template is, its axes filled in. Raises KeyError for an axis that the binding lacks."""
    values = dict(binding)

    def text(m: re.Match[str]) -> str:
        value = values[m[1]]
        return str(value + int(m[2]) if m[2] and isinstance(value, int) else value)

    return _SHIFTED.sub(text, template)
