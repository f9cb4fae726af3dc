"""The one exception that a user can cause: it becomes exit status 2 and one line on stderr."""

from __future__ import annotations

from typing import Any


class RequestError(Exception):
    """The request could not be served: bad usage, nothing to audit, a missing extra.

    The message is one line that names the thing, what was expected, what was found and what to do.
    """


class UnwrittenError(RequestError):
    """The report is there, and a file that was asked for beside it could not be written."""

    def __init__(self, message: str, report: Any) -> None:
        super().__init__(message)
        self.report = report


def told(error: BaseException) -> str:
    """`ValueError: first line`: what foreign code raised, also where its own message cannot be had."""
    try:
        lines = str(error).splitlines()
    except Exception:
        lines = []
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
