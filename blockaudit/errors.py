"""The one exception that a user can cause: it becomes exit status 2 and one line on stderr."""

from __future__ import annotations


class RequestError(Exception):
    """The request could not be served: bad usage, nothing to audit, a missing extra.

    The message is one line that names the thing, what was expected, what was found and what to do.
    """
