r"""The one door through which names and texts from a checkpoint reach a terminal.

A tensor may be called `\x1b[2J` or carry a bidi override that reads as another name; a file name may hold bytes that
are no text at all. Whatever cannot be printed is shown by its escape, so that what is read is what is there.
"""

from __future__ import annotations


def escape(text: str) -> str:
    r"""Show control characters, ANSI escapes, bidi overrides and lone surrogates as `\x1b`, `\u202e`, `\udcff`."""
    # str.isprintable is false for exactly the categories that can deceive: Cc, Cf, Cs, Co, Cn, Zl, Zp and odd spaces.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
