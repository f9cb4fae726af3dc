"""The source of a conversion: where the bytes of each key lie. The one place that knows how they are read."""

from __future__ import annotations

from blockaudit.checkpoint.ranges import OpenFiles, Span
from blockaudit.checkpoint.spans import spans_of
from blockaudit.checkpoint.weights import read_weights
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import Checkpoint, FileHeader


class Source:
    """Source keys and their bytes. `files` is open until `close`."""

    def __init__(self, checkpoint: Checkpoint, beside: tuple[str, ...] = ()) -> None:
        """Hold the files of a checkpoint, and further ones (paths) that are read. Raises RequestError."""
        self.checkpoint = checkpoint
        self.tensors = checkpoint.tensors
        self.names = {file.path: file.name for file in checkpoint.files}
        self.files = OpenFiles((*self.names, *beside))
        self._order = {path: number for number, path in enumerate(self.names)}
        for header in checkpoint.files:
            _same_header(header)
        try:
            self._span = spans_of(checkpoint, self.files)
            # What cannot be read is told now, and not after an hour of writing.
            for key in self.tensors:
                self.span(key)
        except BaseException:
            self.close()
            raise

    @property
    def paths(self) -> tuple[str, ...]:
        """The weight files, in the order of the checkpoint."""
        return tuple(self.names)

    def span(self, key: str) -> Span:
        """The bytes of a key. Raises RequestError where they cannot be had."""
        return self._span(key)

    def place(self, key: str) -> tuple[int, int]:
        """What sorts keys as they lie: the file, and the first byte in it, of the first part where it has several."""
        span = self.span(key)
        return self._order[span.path], span.offset

    def close(self) -> None:
        """Close the files."""
        self.files.close()


def _same_header(header: FileHeader) -> None:
    """The plan was made from a header that was read before: raise RequestError where the file has another by now."""
    if header.container != "safetensors":
        return  # its size and time are held from here on
    now = read_weights(header.path, header.name)[0]
    # Keys of rank files have the rank in front: what they name is compared.
    if (now.size, now.data_start, [*now.tensors.values()]) != (
        header.size,
        header.data_start,
        [*header.tensors.values()],
    ):
        raise RequestError(f"{header.path}: it changed while it was read: run again once nothing writes to it")
