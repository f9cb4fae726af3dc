"""Why a draft leaves something out."""

from __future__ import annotations


class Undecidable(Exception):
    """Neither manifest nor shape says what is to be done here. The text says what is missing, in one line."""
