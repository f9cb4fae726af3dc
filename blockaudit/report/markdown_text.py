"""Text from a checkpoint as markdown that shows it and does nothing else.

A name may be `<img src=x>`, `[x](https://evil)`, `@everyone` or `| a | b |`. Backslashes do not help: GitHub looks for
mentions, issue numbers, commits and addresses after markdown is done, everywhere but in code. So whatever is not plain
English words and numbers becomes a code span, and what would end a span or a table cell is shown by its escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from blockaudit.report.escape import escape

# Inside a span nothing has a meaning but these two: a backtick ends it, and a bar ends the table's cell around it.
_ENDS = {"`": "\\x60", "|": "\\x7c"}
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_NUMBER = re.compile(r"[+-]?[0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?%?")
# Between words these are themselves; at the start of a line they would make a list or a heading.
_SIGNS = frozenset({"", "=", "-", "+", "->", "x"})
# GitHub makes a link of what may be a commit.
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_AROUND = re.compile(r"(\(?)(.*?)([,.;:?)]*)", re.DOTALL)


def code(text: str, longest: int = 160) -> str:
    """`text` as one code span."""
    shown = cut(escape(text), longest).translate(str.maketrans(_ENDS))
    return f"`{shown}`" if shown.strip() else '`""`'


def prose(text: str, longest: int = 600) -> str:
    """A sentence: its words as they are, every name in it as a code span; what stood in backticks stays one span."""
    parts = cut(escape(text), longest).split("`")
    said = [code(part, longest) if i % 2 else _sentence(part) for i, part in enumerate(parts)]
    return "".join(said).strip()


def cut(text: str, longest: int) -> str:
    """`text`, or its beginning and `...`."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _sentence(text: str) -> str:
    first, *others = text.split(" ")
    return " ".join([_word(first), *(word if word in _SIGNS else _word(word) for word in others)])


def _word(word: str) -> str:
    matched = _AROUND.fullmatch(word)
    before, core, after = matched.groups() if matched else ("", word, "")
    if not core or (_plain(core) and not _COMMIT.fullmatch(core)):
        return word
    # A bracket that opens inside a name closes inside it: `f(x)`.
    if ")" in after and not before and "(" in core:
        core, after = core + after[: after.rindex(")") + 1], after[after.rindex(")") + 1 :]
    return f"{before}{code(core, len(core))}{after}"


def _plain(core: str) -> bool:
    return bool(_WORD.fullmatch(core) or _NUMBER.fullmatch(core))


class Room:
    """Characters that are left of a text that may not grow past a limit."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def fixed(self, lines: list[str]) -> list[str]:
        """Lines that are there in any case."""
        self._left -= sum(len(line) + 1 for line in lines)
        return lines

    def fits(self, line: str, kept: int) -> bool:
        """Whether `line` leaves `kept` characters; if so, it is taken."""
        if self._left - len(line) - 1 < kept:
            return False
        self._left -= len(line) + 1
        return True


# What is kept for the lines after a table: what was cut, and the headings of the parts that follow.
_KEPT = 800


def table(
    title: str, head: Sequence[str], rows: Iterable[list[str]], total: int, noun: str, room: Room, most: int
) -> list[str]:
    """A table of at most `most` rows, and of no more than there is room for; the rest is counted."""
    if not total:
        return []
    top = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines = room.fixed([*(["", title] if title else []), "", *top])
    shown = 0
    for row in islice(rows, most):
        line = f"| {' | '.join(row)} |"
        if not room.fits(line, _KEPT):
            break
        lines.append(line)
        shown += 1
    if shown < total:
        lines += room.fixed(["", f"And {total - shown:,} more, cut here ({noun}s in full: `--format json`)."])
    return lines
