"""GGUF files as weight files: headers with their faults, the parts of a split one, and what its metadata says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.files import gc_paused, open_file, reason, short
from blockaudit.checkpoint.gguf.header import BadHeaderError, Header, read
from blockaudit.checkpoint.header import unread
from blockaudit.checkpoint.layout import check_spans
from blockaudit.checkpoint.links import LEADS_OUT, leads_out
from blockaudit.records.checkpoint import Fault, FileHeader, TensorHeader

Read = tuple[FileHeader, list[Fault], dict[str, Any]]


def _faults(header: Header, name: str, size: int) -> list[Fault]:
    """What is wrong with the places of the tensors. Each starts on the alignment, so that what pads one is no hole."""
    faults: list[Fault] = []
    if header.repeated:
        keys = tuple(dict.fromkeys(key for key, _ in header.repeated))
        text = f"the header names {short(keys[0])} more than once; the first one counts"
        faults.append(Fault("duplicate-key", name, text, keys))
    entries = [*header.tensors.items(), *header.repeated]
    crooked = [key for key, t in entries if t.data_offsets[0] % header.alignment]
    if crooked:
        text = f"{short(crooked[0])} does not start on the alignment of {header.alignment} bytes"
        faults.append(Fault("corrupt-header", name, text, tuple(crooked)))
    data = size - header.data_start

    def padded(tensor: TensorHeader) -> TensorHeader:
        start, stop = tensor.data_offsets
        full = -(-stop // header.alignment) * header.alignment
        return TensorHeader(tensor.dtype, tensor.shape, (start, max(stop, min(full, data))))

    return faults + check_spans([(key, padded(t)) for key, t in entries], name, header.data_start, data)


def read_file(path: str, name: str) -> Read:
    """The header of one file, its faults and its metadata. Raises RequestError where the gguf package is missing."""
    size = 0
    try:
        with closing(open_file(path)) as file, gc_paused():
            size = file.size
            header, identity = read(file), file.identity
    except BadHeaderError as error:
        fault = Fault(error.rule, name, error.why, expected=error.expected, observed=error.observed)
        return unread(path, name, size, "gguf"), [fault], {}
    except OSError as error:
        return (
            unread(path, name, size, "gguf"),
            [Fault("unreadable-file", name, f"cannot be read: {reason(error)}")],
            {},
        )
    file_header = FileHeader(name, path, size, "gguf", header.data_start, header.tensors, identity=identity)
    return file_header, _faults(header, name, size), header.metadata


def read_files(folder: str, names: Sequence[str]) -> tuple[list[FileHeader], list[Fault], dict[str, Any]]:
    """All parts in order. The first part's metadata is the model's; a part that is not there is a fault."""
    files: list[FileHeader] = []
    faults: list[Fault] = []
    metadata: dict[str, Any] = {}
    lost = [name for name in names if not storage.exists(os.path.join(folder, name))]
    for name in names:
        path = os.path.join(folder, name)
        if name in lost:
            files.append(unread(path, name, 0, "gguf"))
            continue
        if len(names) > 1 and leads_out(folder, name):
            files.append(unread(path, name, 0, "gguf"))
            faults.append(Fault("unreadable-file", name, f"cannot be read: {LEADS_OUT}"))
            continue
        header, found, said = read_file(path, name)
        files.append(header)
        faults += found
        metadata = {**said, **metadata}
    if lost:
        text = f"{len(lost)} of the {len(names)} parts are not there: {', '.join(lost[:3])}"
        faults.append(Fault("shard-missing", lost[0], text, expected=list(names), observed=lost))
    counted = metadata.get("split.tensors.count")
    held = sum(len(file.tensors) for file in files)
    if isinstance(counted, int) and not lost and all(f.readable for f in files) and held != counted:
        text = f"the parts hold {held:,} tensors, and split.tensors.count says {counted:,}"
        faults.append(Fault("index-mismatch", names[0], text, expected=counted, observed=held))
    return files, faults, metadata
