"""Which day it is, for waivers that expire; the one place that asks."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from blockaudit.errors import RequestError

# https://reproducible-builds.org/specs/source-date-epoch/
VARIABLE = "SOURCE_DATE_EPOCH"


def today() -> str:
    """The day as an ISO date, in UTC, so that every machine of a team has the same one.

    SOURCE_DATE_EPOCH stands in for the clock where it is set. Raises RequestError where that is no number of seconds.
    """
    epoch = os.environ.get(VARIABLE)
    if not epoch:
        return datetime.now(UTC).date().isoformat()
    try:
        return datetime.fromtimestamp(int(epoch), UTC).date().isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise RequestError(f"{VARIABLE}={epoch!r}: expected seconds since 1970, a whole number") from error
