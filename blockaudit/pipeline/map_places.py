"""Where in a map's file a flaw stands: the line that a person has to mend."""

from __future__ import annotations

import os
import re
from functools import cached_property

from blockaudit.manifest import document
from blockaudit.manifest.load import read
from blockaudit.records.checkpoint import Fault
from blockaudit.records.report import Place

# `rules[3].ops`, `alias[0]`, `config.rms_norm_eps`, `optimizer`.
_PART = re.compile(
    r"^(rules|init|alias|drop|buffers)\[(\d+)\]|^(config|supply|supply_back)\.([^\s,:]+)|^(drop|optimizer)\b"
)


class MapPlaces:
    """The places of one map's flaws; a map of the library has none."""

    def __init__(self, file: str) -> None:
        self._file = file if os.path.isfile(file) else ""

    def of(self, flaw: Fault) -> tuple[Place, ...]:
        """The line of what a flaw is about; of one that is about no line of it, the file."""
        if not self._file:
            return ()
        found = _PART.match(flaw.evidence) or _PART.match(flaw.file)
        if found is None:
            return (Place(self._file),)
        where: document.Where = (found[3], found[4]) if found[3] else (found[5],)
        if found[1]:
            where = (found[1], int(found[2]))
        return (Place(self._file, self._lines.of(where) or 0),)

    @cached_property
    def _lines(self) -> document.Lines:
        return document.Lines(read(self._file))
