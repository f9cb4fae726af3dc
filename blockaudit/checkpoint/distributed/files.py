"""A folder of `.metadata` and `.distcp` files (torch.distributed.checkpoint) as the headers of weight files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.distributed import NAME
from blockaudit.checkpoint.distributed.chunks import Budget, flaw
from blockaudit.checkpoint.distributed.layers import Layer, apart
from blockaudit.checkpoint.distributed.metadata import Metadata, Place, Tensor, read_metadata
from blockaudit.checkpoint.distributed.vectors import located
from blockaudit.checkpoint.files import gc_paused, open_file, reason, short
from blockaudit.checkpoint.header import unread
from blockaudit.checkpoint.index import refused_name
from blockaudit.checkpoint.refusal import RefusedError
from blockaudit.records.checkpoint import Fault, FileHeader, TensorHeader

CONTAINER = "torch-distributed"
# Words that begin the path of what is no part of the model: states of optimizers, schedules, generators and loops.
_STATE = (
    "optim", "optimizer", "optimizers", "lr_scheduler", "scheduler", "opt_param_scheduler", "rng_state", "rerun_state",
    "dataloader", "train_state", "trainer", "step", "chained_0", "iteration",
)  # fmt: skip


class Read(msgspec.Struct, frozen=True):
    """The files of a distributed checkpoint, its faults, and how many tensors of training state it has beside."""

    files: tuple[FileHeader, ...]
    faults: tuple[Fault, ...]
    state: int = 0
    prefix: str = ""


def read_folder(folder: str, *, megatron: bool = False) -> Read:
    """Read the metadata in `folder` and look at the files that it names. Whatever is wrong is a fault.

    megatron: Megatron-core wrote it, and has laid layers into one tensor: each gets a header of its own.
    """
    path = os.path.join(folder, NAME)
    try:
        with gc_paused():
            metadata = read_metadata(path)
    except RefusedError as error:
        fault = Fault(error.rule, NAME, error.message, expected=error.expected, observed=error.observed)
        return Read((unread(path, NAME, 0, CONTAINER),), (fault,))
    except (OSError, RecursionError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is nested too deeply"
        return Read((unread(path, NAME, 0, CONTAINER),), (Fault("unreadable-file", NAME, f"cannot be read: {why}"),))
    prefix = _prefix(metadata)
    model = dict(_model(metadata, prefix))
    if not model:
        text = f"its {len(metadata.tensors):,} tensors are training state, and none is a model's"
        return Read((unread(path, NAME, 0, CONTAINER),), (Fault("sharded-training-state", NAME, text),))
    files, faults = _files(folder, model, _ends(metadata))
    if megatron:
        files = _by_layer(files, layers_of(model, megatron))
    return Read(tuple(files), (*_chunk_faults(model), *faults), len(metadata.tensors) - len(model), prefix)


# -- the model in it --------------------------------------------------------------------------------------------------


def model_of(metadata: Metadata) -> dict[str, Tensor]:
    """The model's tensors, by the names that its own state dict has for them."""
    return dict(_model(metadata, _prefix(metadata)))


def _is_state(key: str) -> bool:
    head, *rest = key.split(".")
    return head in _STATE or head.startswith("optimizer") or (head == "app" and bool(rest) and rest[0] in _STATE)


def _prefix(metadata: Metadata) -> str:
    """What the model's keys have in front: the dictionaries that it was saved in (`model.`, `app.model.`)."""
    votes: Counter[str] = Counter()
    for key in metadata.tensors:
        path = metadata.paths.get(key, (key,))
        nested = ".".join(path) == key and not _is_state(key)
        votes[".".join((*path[:-1], "")) if nested else ""] += not _is_state(key)
    return votes.most_common(1)[0][0] if votes else ""


def layers_of(model: Mapping[str, Tensor], megatron: bool) -> dict[str, Layer]:
    """The model's tensors by the keys that they are spoken of by: those of Megatron-core layer by layer."""
    shapes = {key: tensor.shape for key, tensor in model.items()}
    return apart(shapes) if megatron else {key: Layer(key, None, shape) for key, shape in shapes.items()}


def _model(metadata: Metadata, prefix: str) -> Iterable[tuple[str, Tensor]]:
    for key, tensor in metadata.tensors.items():
        if key.startswith(prefix) and not _is_state(key):
            yield key[len(prefix) :], tensor


# -- what is wrong with it --------------------------------------------------------------------------------------------


def _chunk_faults(model: Mapping[str, Tensor]) -> Iterable[Fault]:
    """Tensors whose chunks do not make them up."""
    budget = Budget()
    bad = [(key, why) for key, tensor in model.items() if (why := flaw(tensor, budget))]
    if bad:
        more = f" (and {len(bad) - 1:,} more tensors)" if len(bad) > 1 else ""
        keys = tuple(key for key, _ in bad)
        yield Fault(
            "corrupt-header", NAME, f"the metadata contradicts itself: {short(keys[0])} {bad[0][1]}{more}", keys
        )


def _ends(metadata: Metadata) -> dict[str, tuple[int, str]]:
    """How far each file must reach, and the tensor that needs it; training state counts, for the file is one."""
    ends: dict[str, tuple[int, str]] = {}
    for key, tensor in metadata.tensors.items():
        for place in (c.place for c in tensor.chunks if c.place is not None):
            end = place.start + place.length
            if end > ends.get(place.file, (-1, ""))[0]:
                ends[place.file] = end, key
    return ends


def _files(
    folder: str, model: Mapping[str, Tensor], ends: Mapping[str, tuple[int, str]]
) -> tuple[list[FileHeader], list[Fault]]:
    """One header for the metadata and each file that holds a chunk, and what is wrong with them and their places."""
    owned: dict[str, dict[str, TensorHeader]] = {NAME: {}}
    faults = list(_places(model))
    for key, tensor in model.items():
        for place in (c.place for c in tensor.chunks if c.place is not None):
            owned.setdefault(place.file, {})
        first = next((c.place for c in tensor.chunks if c.place is not None), None)
        # What no chunk of is stored is still a tensor that the metadata names.
        owned.setdefault(first.file if first else NAME, {})[key] = _header(tensor, first)
    files: list[FileHeader] = []
    for name, tensors in owned.items():
        header, found = _file(folder, name, tensors, ends.get(name, (0, "")))
        if header.readable and not found:
            header, found = _with_vectors(header, {key: model[key] for key in tensors})
        files.append(header)
        faults += found
    return sorted(files, key=lambda f: f.name), faults


def _by_layer(files: Iterable[FileHeader], layers: Mapping[str, Layer]) -> list[FileHeader]:
    """The same files, with a header for every layer where one was for all."""
    named: dict[str, list[tuple[str, Layer]]] = {}
    for key, layer in layers.items():
        named.setdefault(layer.stacked, []).append((key, layer))
    found: list[FileHeader] = []
    for file in files:
        tensors = {
            key: header if layer.number is None else _layer_header(header, layer)
            for stacked, header in file.tensors.items()
            for key, layer in named[stacked]
        }
        strided = frozenset(key for stacked in file.strided for key, _ in named[stacked])
        found.append(replace(file, tensors=tensors, strided=strided))
    return found


def _layer_header(stacked: TensorHeader, layer: Layer) -> TensorHeader:
    start, nbytes = stacked.data_offsets[0], stacked.nbytes // stacked.shape[0]
    return TensorHeader(stacked.dtype, layer.shape, (start, start + nbytes))


def _header(tensor: Tensor, place: Place | None) -> TensorHeader:
    start = place.start if place else 0
    return TensorHeader(tensor.dtype, tensor.shape, (start, start + tensor.nbytes))


def _places(model: Mapping[str, Tensor]) -> Iterable[Fault]:
    """Chunks that are stored nowhere, and chunks whose place is smaller than they are."""
    lost = [key for key, t in model.items() if any(c.place is None for c in t.chunks)]
    if lost:
        text = f"the metadata says of {len(lost):,} tensors not where they are stored ({short(lost[0])})"
        yield Fault("corrupt-header", NAME, text, tuple(lost))
    nowhere = set(lost)
    small = [key for key, t in model.items() if t.chunks and _held(t) < t.nbytes and key not in nowhere]
    if small:
        text = f"the metadata gives {short(small[0])} {_held(model[small[0]]):,} bytes, less than it needs"
        yield Fault("corrupt-header", NAME, text, tuple(small), model[small[0]].nbytes, _held(model[small[0]]))


def _held(tensor: Tensor) -> int:
    """Bytes of all the places of a tensor; what was packed on the way may take any number."""
    places = [c.place for c in tensor.chunks if c.place is not None]
    return sum(p.length for p in places) if all(p.plain for p in places) else tensor.nbytes


def _file(
    folder: str, name: str, tensors: dict[str, TensorHeader], end: tuple[int, str]
) -> tuple[FileHeader, list[Fault]]:
    """One file: that it is in the folder, and reaches as far as the metadata says. Its bytes are not read."""
    path = os.path.join(folder, name)
    why = refused_name(folder, name)
    if why:
        text = f"the metadata names the file {short(name, 80)!r}, which {why}: it was not opened"
        return unread(path, short(name, 80), 0, CONTAINER), [Fault("corrupt-header", NAME, text, observed=name[:200])]
    if not storage.exists(path):
        text = f"{short(name)} is not there: {len(tensors):,} tensors begin in it"
        return unread(path, name, 0, CONTAINER), [Fault("shard-missing", name, text, tuple(tensors))]
    try:
        file = open_file(path)
    except OSError as error:
        fault = Fault("unreadable-file", name, f"cannot be read: {reason(error)}")
        return unread(path, name, 0, CONTAINER), [fault]
    size, identity = file.size, file.identity
    file.close()
    header = FileHeader(name, path, size, CONTAINER, 0, tensors, strided=frozenset(tensors), identity=identity)
    if end[0] <= size:
        return header, []
    text = f"the file ends early: {end[0]:,} bytes are needed for {short(end[1])}, it has {size:,}"
    return header, [Fault("truncated-file", name, text, (end[1],), end[0], size)]


def _with_vectors(header: FileHeader, tensors: Mapping[str, Tensor]) -> tuple[FileHeader, list[Fault]]:
    """The same file, with the bytes of short vectors known, so that their numbers can be read."""
    try:
        starts, faults = located(header.path, header.name, tensors)
    except OSError as error:
        return header, [Fault("unreadable-file", header.name, f"cannot be read: {reason(error)}")]
    found = {
        key: TensorHeader(t.dtype, t.shape, (starts[key], starts[key] + t.nbytes)) if key in starts else t
        for key, t in header.tensors.items()
    }
    return replace(header, tensors=found, strided=header.strided - starts.keys()), faults
