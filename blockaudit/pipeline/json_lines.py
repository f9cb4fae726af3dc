"""In which line of a JSON text a value stands: YAML's parser, which keeps marks, is not loaded for that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from blockaudit.manifest.document import Where

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')


def line_of(text: str, where: Where) -> int:
    """The line of the value at `where` (of a field's name, where it has one), counted from 1; 0 where there is none.

    The text is JSON that has been read before: of what is not, any line may come out, and no exception.
    """
    wanted = list(where)
    for path, offset in _places(text):
        if len(path) == len(wanted) and path == wanted:
            return text.count("\n", 0, offset) + 1
    return 0


def _places(text: str) -> Iterator[tuple[list[str | int], int]]:
    """The path of every value with where it starts; the list is one that changes as the text is read."""
    path: list[str | int] = []  # of each open object and array: the name or number of the value that is read
    named = False
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in "]}":
            del path[-1:]
            named = False
        elif word == ",":
            if path and isinstance(path[-1], int):
                path[-1] += 1
            named = False
        elif word == ":":
            named = True
        elif path and isinstance(path[-1], str) and not named:
            path[-1] = _name(word)
            yield path, token.start()
        else:
            if path and isinstance(path[-1], int):
                yield path, token.start()
            if word in "{[":
                path.append("" if word == "{" else 0)
                named = False


def _name(word: str) -> str:
    try:
        name = json.loads(word)
    except ValueError:
        return word
    return name if isinstance(name, str) else word
