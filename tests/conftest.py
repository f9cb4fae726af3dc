"""No test reads or writes the cache of the user who runs it."""

from __future__ import annotations

import os

# Tests of the cache itself turn it on, in a folder of their own; processes that tests start inherit this.
os.environ["BLOCKAUDIT_CACHE"] = "off"
os.environ.pop("BLOCKAUDIT_CACHE_DIR", None)
