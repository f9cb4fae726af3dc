"""Words that every closed document of ours has for a key that it does not know."""

from __future__ import annotations

from collections.abc import Sequence


def no_such_key(key: str, known: Sequence[str]) -> str:
    """`no key 'resaon': did you mean reason?`, or all that there are."""
    from difflib import get_close_matches

    near = get_close_matches(key, known, 1)
    return f"no key {key!r}: " + (f"did you mean {near[0]!r}?" if near else f"expected {', '.join(known)}")
