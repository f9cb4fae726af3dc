"""Why a pickled file is not read on, as an exception that its reader turns into a fault."""

from __future__ import annotations

from typing import Any


class RefusedError(Exception):
    """A file that is not read on: the rule it breaks and why, in half a sentence."""

    def __init__(self, rule: str, message: str, expected: Any = None, observed: Any = None) -> None:
        super().__init__(message)
        self.rule, self.message, self.expected, self.observed = rule, message, expected, observed


def malformed(why: str) -> RefusedError:
    """A pickle that no pickler writes."""
    return RefusedError("unreadable-file", f"its pickle is malformed: {why}")


def printable(name: str) -> str:
    """A name from a pickle, cut, with what could not be encoded spelt out."""
    return name[:200].encode("utf-8", "backslashreplace").decode("utf-8")


def unsafe(name: str) -> RefusedError:
    """A pickle that asks for something outside the vocabulary of a state dict."""
    return RefusedError(
        "unsafe-pickle",
        f"its pickle asks for {printable(name)}, which a state dict has no use for; nothing was run. "
        "Save the state dict alone, as safetensors",
        observed=printable(name),
    )
