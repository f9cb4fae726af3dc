r"""A key mapping in a file: an object of patterns and replacements, as transformers takes for `key_mapping`.

Patterns are regular expressions of a small kind, which cannot take long on any key: text, `.` and `\.`, `^`, `$`,
`\d+`, and one group `(.+)` or `(\d+)`, which the replacement names `\1`.
"""

from __future__ import annotations

import re
from typing import Any, cast

from blockaudit.errors import RequestError
from blockaudit.manifest import document
from blockaudit.manifest.load import read
from blockaudit.migrate.importing.steps import Renamed

_PLAIN = re.compile(r"\^?(?:[\w.\-]|\\\.|\\d\+|\((?:\\d\+|\.[+*])\))*\$?")
_GROUP = re.compile(r"\((?:\\d\+|\.[+*])\)")
_MOST = 1000


class KeyMapping:
    """The rules of a file in their order: each is applied once to a key, where it is found."""

    def __init__(self, pairs: list[tuple[re.Pattern[str], str]], evidence: str) -> None:
        self._pairs = pairs
        self.evidence = evidence

    def renamed(self, key: str, axes: tuple[str, ...]) -> Renamed:
        del axes
        for pattern, replacement in self._pairs:
            found = pattern.search(key)
            if found is not None:
                new = replacement.replace(r"\1", found[1]) if found.groups() else replacement
                key = key[: found.start()] + new + key[found.end() :]
        return Renamed((key,))


def of_file(path: str) -> KeyMapping:
    """The key mapping of a JSON or YAML file. Raises RequestError, one line, with the pattern at fault."""
    parsed: object = document.parse(read(path), path)
    if not isinstance(parsed, dict) or not parsed:
        raise RequestError(f"{path}: expected an object of patterns and replacements, found {parsed!r:.40}")
    given = cast("dict[str, Any]", parsed)
    if len(given) > _MOST:
        raise RequestError(f"{path}: expected at most {_MOST} patterns, found {len(given)}")
    pairs = [_pair(path, pattern, new) for pattern, new in given.items()]
    return KeyMapping(pairs, f"the key mapping in {path.rpartition('/')[2]}")


def _pair(path: str, pattern: object, new: object) -> tuple[re.Pattern[str], str]:
    if not isinstance(pattern, str) or not isinstance(new, str):
        raise RequestError(f"{path}: expected text for every pattern and replacement, found {pattern!r}: {new!r}")
    groups = len(_GROUP.findall(pattern))
    if _PLAIN.fullmatch(pattern) is None or groups > 1:
        raise RequestError(
            f"{path}: pattern {pattern!r}: expected text, '.', '^', '$', '\\d+' and one group (.+) or (\\d+): write "
            "the rule into the map by hand"
        )
    replacement = new.replace("\\.", ".").removeprefix("^").removesuffix("$")
    if re.search(r"\\(?!1)|[()*+?|^$\[\]]", replacement) or (r"\1" in replacement and not groups):
        raise RequestError(f"{path}: replacement {new!r}: expected text, and \\1 where the pattern has a group")
    return re.compile(pattern), replacement
