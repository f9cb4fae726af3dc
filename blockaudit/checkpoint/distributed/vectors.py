"""Where the numbers of short vectors lie inside a `.distcp` file: each chunk there is a file that torch.save wrote.

Norm vectors are read at every level, and the metadata only says where their archive begins.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import closing

from blockaudit.checkpoint.distributed.archives import start_in
from blockaudit.checkpoint.distributed.metadata import Tensor
from blockaudit.checkpoint.files import open_file, short
from blockaudit.checkpoint.refusal import RefusedError
from blockaudit.records.checkpoint import Fault

# Vectors of one checkpoint that are looked up, and the largest archive that one may lie in.
_MOST = 2000
_LARGEST = 4 << 20


def located(path: str, name: str, tensors: Mapping[str, Tensor]) -> tuple[dict[str, int], list[Fault]]:
    """First byte in the file of every vector that lies in it as one chunk; an archive that holds another is a fault."""
    short_ones = [(k, t) for k, t in tensors.items() if len(t.shape) == 1 and len(t.chunks) == 1][:_MOST]
    starts: dict[str, int] = {}
    faults: list[Fault] = []
    with closing(open_file(path)) as file:
        for key, tensor in short_ones:
            place = tensor.chunks[0].place
            if place is None or place.file != name or not place.plain or place.length > _LARGEST:
                continue
            raw = file.read_at(place.length, place.start)
            try:
                starts[key] = place.start + start_in(io.BytesIO(raw), len(raw), key, tensor.dtype, tensor.shape)
            except RefusedError as error:
                text = f"{short(key)} cannot be read at byte {place.start:,}: {error.message}"
                faults.append(Fault(error.rule, name, text, (key,), error.expected, error.observed))
    return starts, faults[:1]
