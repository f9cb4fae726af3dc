"""A candidate's trace, written while it runs: every site of a layer as soon as it is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.records.trace_file import TOKENS, TraceMetadata
from blockaudit.trace.files.write import TraceWriter
from blockaudit.trace.models import Inputs
from blockaudit.trace.running import named
from blockaudit.trace.scene import Seen
from blockaudit.trace.tokens import digest

# Sites of one layer, and of what lies around the layers: about how much room a header needs.
_PER_LAYER, _AROUND = 20, 16


def check(path: Path | None) -> None:
    """Raises RequestError where no trace can be written there, before any work is done for it."""
    if path is not None:
        TraceWriter(path, TraceMetadata()).discard()


class Recorder:
    """One trace being written. `fault` says why it is not; a run goes on without it."""

    def __init__(
        self, path: Path, inputs: Inputs, several: bool, layers: int, manifest: str, dtype: str, depth: str = ""
    ) -> None:
        """Raises RequestError where nothing can be written there at all."""
        self.fault, self._several = "", several
        tokens = {k: v for k in TOKENS if (v := inputs.get(k)) is not None and (several or not k.startswith("decoder"))}
        metadata = TraceMetadata(manifest, dtype, digest(tokens), "end-to-end", depth)
        self._writer = TraceWriter(path, metadata, _PER_LAYER * layers + _AROUND)
        for name, value in tokens.items():
            self._add(name, value.long())

    def look(self, seen: Seen) -> None:
        """An observer of a pass."""
        self.keep(named(seen.segment, seen.sites, self._several))

    def keep(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            if value.dim() == 3 and value.is_floating_point():  # scores of a class are no site of a token
                self._add(name, value)

    def _add(self, name: str, value: Tensor) -> None:
        if self.fault:
            return
        try:
            self._writer.add(name, value)
        except RequestError as error:
            self.fault = str(error)

    def commit(self) -> None:
        """Give the file its name."""
        if self.fault:
            return
        try:
            self._writer.commit()
        except RequestError as error:
            self.fault = str(error)

    def discard(self) -> None:
        """Leave nothing behind, where the run itself has failed."""
        self._writer.discard()
