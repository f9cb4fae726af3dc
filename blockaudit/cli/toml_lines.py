"""On which line a TOML file says something. The standard library's parser tells values and no places."""

from __future__ import annotations

import re
from datetime import date

# A date as TOML writes it, alone or before a time.
_DATE = re.compile(r"^[^#\"'=]*=\s*(\d{4}-\d{1,2}-\d{1,2})(?![\d-])", re.MULTILINE)
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]")


def line_of(text: str, table: str, key: str, number: int = 0) -> int:
    """The line, from 1, of `key` in the table of this name, in its `number`th (from 0) where there are several.

    Without a key, the line of the table's own header. 0 where it is written in a way that this does not read, as in an
    inline table: the reader is then sent to the file.
    """
    inside, seen = not table, -1
    assigned = re.compile(rf"^\s*(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')\s*[.=]") if key else None
    for at, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            name = re.sub(r"[\s\"']", "", header[2])
            seen += name == table and header[1] == "[["
            inside = name == table and (header[1] == "[" or seen == number)
            ours = inside and assigned is None
            below = bool(key) and name == ".".join(filter(None, (table, key)))
            if ours or below:
                return at
        elif inside and assigned is not None and assigned.match(line):
            return at
    return 0


def no_date(text: str) -> str:
    """For a text that is not TOML: the first date in it that is none (`2026-12-32`), told apart."""
    for found in _DATE.finditer(text):
        try:
            date.fromisoformat(found[1])
        except ValueError:
            at = text.count("\n", 0, found.start(1)) + 1
            return f"; {found[1]} (line {at}) is no date: expected YYYY-MM-DD, a day of the calendar"
    return ""
