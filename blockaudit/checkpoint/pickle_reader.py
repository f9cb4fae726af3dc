"""PyTorch state dicts (.bin, .pt, .pth, .ckpt), read without unpickling anything."""

from __future__ import annotations

from contextlib import closing

from blockaudit.checkpoint.files import PositionedFile, gc_paused, open_file, reason
from blockaudit.checkpoint.header import unread
from blockaudit.checkpoint.refusal import RefusedError
from blockaudit.checkpoint.state_dict import Named, name_tensors
from blockaudit.records.checkpoint import Fault, FileHeader


def _named(file: PositionedFile, *, zipped: bool) -> Named:
    # The storages are looked up while the file is open.
    with file.stream() as stream, gc_paused():
        if zipped:
            from blockaudit.checkpoint.torch_zip import read_zip

            return name_tensors(*read_zip(stream, file.size))
        from blockaudit.checkpoint.torch_legacy import read_legacy

        return name_tensors(*read_legacy(stream, file.size))


def read_pickle(path: str, name: str) -> tuple[FileHeader, list[Fault]]:
    """Read the tensor headers of the state dict at `path`, reported as `name`; whatever is wrong with it is a fault.

    Byte ranges are absolute (`data_start` is 0). `storages` maps every key to its storage, `strided` names the keys
    whose elements do not lie side by side. Nothing in the file is executed, and none of its names imported.
    """
    size, container = 0, "torch-zip"
    try:
        with closing(open_file(path)) as file:
            size = file.size
            zipped = file.read_at(4, 0) == b"PK\x03\x04"
            container = "torch-zip" if zipped else "torch-legacy"
            named, identity = _named(file, zipped=zipped), file.identity
    except RefusedError as error:
        fault = Fault(error.rule, name, error.message, expected=error.expected, observed=error.observed)
        return unread(path, name, size, container), [fault]
    except (OSError, RecursionError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is nested too deeply"
        return unread(path, name, size, container), [Fault("unreadable-file", name, f"cannot be read: {why}")]
    metadata = {"blockaudit.unwrapped": named.wrapper} if named.wrapper else {}
    header = FileHeader(
        name, path, size, container, 0, named.tensors, metadata, storages=named.storages, strided=named.strided,
        identity=identity,
    )  # fmt: skip
    return header, []
