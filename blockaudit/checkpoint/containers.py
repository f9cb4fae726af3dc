"""SOURCEs of other layouts than Hugging Face's that are read all the same: GGUF, and distributed folders."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

from blockaudit.checkpoint.config import read_config
from blockaudit.checkpoint.distributed import MEGATRON_CORE, TORCH
from blockaudit.checkpoint.distributed import NAME as DISTRIBUTED
from blockaudit.checkpoint.files import open_file
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import Checkpoint, Container, Fault, FileHeader, TensorHeader

MEGATRON = "metadata.json"
_GGUF = ".gguf"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", _GGUF)
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)
_MAX_PARTS = 1000
_LAYOUT = (
    "GGUF keeps tensors as its runtime wants them: rows of q and k may be permuted for rotary pairs, parts of a fused "
    "projection reordered, and norms of 1 + weight have the 1 added; the order of rows is not audited"
)


def parts_of(name: str) -> tuple[str, ...]:
    """The names of all parts of the split file that this one is a part of; the name alone where it is none."""
    hit = _PART.fullmatch(name)
    if hit is None or not 0 < int(hit[3]) <= _MAX_PARTS:
        return (name,)
    return tuple(f"{hit[1]}-{n:05d}-of-{hit[3]}{_GGUF}" for n in range(1, int(hit[3]) + 1))


def is_gguf(path: str) -> bool:
    """Whether a file is a GGUF by its name or by its first bytes."""
    if path.lower().endswith(_GGUF):
        return True
    try:
        with closing(open_file(path)) as file:
            return file.read_at(4, 0) == b"GGUF"
    except OSError:
        return False


def _merged(files: list[FileHeader]) -> tuple[dict[str, TensorHeader], dict[str, FileHeader], list[Fault]]:
    """All tensors and who holds them; a key that two files hold is a fault."""
    tensors: dict[str, TensorHeader] = {}
    owner: dict[str, FileHeader] = {}
    twice: list[str] = []
    for file in files:
        twice += [key for key in file.tensors if key in owner]
        tensors.update(file.tensors)
        owner.update(dict.fromkeys(file.tensors, file))
    if not twice:
        return tensors, owner, []
    text = f"{len(twice):,} tensors are in more than one file ({twice[0][:80]})"
    return tensors, owner, [Fault("duplicate-key", owner[twice[0]].name, text, tuple(twice))]


def open_gguf(source: str, folder: str, name: str, sidecars: tuple[str, ...]) -> Checkpoint:
    """A GGUF file, and with it the other parts where it is one of several. It carries its own configuration."""
    from blockaudit.checkpoint.gguf.files import read_files
    from blockaudit.checkpoint.gguf.metadata import architecture, model_type

    names = parts_of(name)
    files, faults, metadata = read_files(folder, names)
    tensors, owner, twice = _merged(files)
    known = any(file.readable for file in files)
    if known:
        faults.append(
            Fault("layout-converted", name, _LAYOUT, evidence=f"general.architecture: {architecture(metadata)}")
        )
    return Checkpoint(
        source=source,
        format="gguf" if len(names) == 1 else "sharded-gguf",
        folder=folder or ".",
        files=tuple(files),
        tensors=tensors,
        owner=owner,
        config={"model_type": model_type(metadata)} if known else None,
        faults=(*faults, *twice),
        sidecars=sidecars,
        container=Container(architecture(metadata), metadata) if known else None,
    )


def gguf_files(names: list[str]) -> list[str]:
    """The GGUF models among some names: the first part stands for a split file, and vision projectors are none."""
    found: dict[tuple[str, ...], str] = {}
    for name in names:
        if name.lower().endswith(_GGUF) and not name.startswith("mmproj"):
            found.setdefault(parts_of(name), name)
    return list(found.values())


def distributed_backend(folder: str, source: str, names: list[str]) -> str:
    """`torch_dist` for a folder of Megatron-core, `torch` for another distributed checkpoint, empty for neither.

    Raises RequestError for a backend of Megatron-core that is not read.
    """
    said, _ = read_config(folder, MEGATRON) if MEGATRON in names else (None, [])
    backend: Any = (said or {}).get("sharded_backend")
    if isinstance(backend, str) and backend and backend != "torch_dist":
        raise RequestError(
            f"{source}: a Megatron-core checkpoint of the {backend[:40]} backend, which is not read: "
            "load it in Megatron and save it with --dist-ckpt-format torch_dist, or convert it to Hugging Face's layout"
        )
    if backend == "torch_dist":
        return backend
    # Its files may all be lost, as long as there is nothing else that a folder with such a name in it could be.
    others = any(name.lower().endswith(_WEIGHTS) for name in names)
    chunks = any(name.endswith(".distcp") for name in names)
    return "torch" if DISTRIBUTED in names and (chunks or not others) else ""


def open_distributed(source: str, folder: str, backend: str, sidecars: tuple[str, ...]) -> Checkpoint:
    """A folder that torch.distributed.checkpoint wrote, or Megatron-core with it."""
    from blockaudit.checkpoint.distributed.files import read_folder

    megatron = backend == "torch_dist"
    read = read_folder(folder, megatron=megatron)
    tensors, owner, twice = _merged(list(read.files))
    config, faults = read_config(folder)
    if read.state:
        several = "tensor" if read.state == 1 else "tensors"
        text = f"{read.state:,} {several} of optimizers and training state beside the model: not covered"
        faults.append(Fault("part-not-covered", DISTRIBUTED, text, observed=read.state))
    return Checkpoint(
        source=source,
        format=MEGATRON_CORE if megatron else TORCH,
        folder=folder or ".",
        files=read.files,
        tensors=tensors,
        owner=owner,
        config=config,
        faults=(*read.faults, *twice, *faults),
        sidecars=sidecars,
    )


def check_whole(checkpoint: Checkpoint) -> None:
    """Raises RequestError where every number is asked of a container whose numbers are not decoded."""
    if checkpoint.format in (TORCH, MEGATRON_CORE):
        raise RequestError(
            f"{checkpoint.source}: of a distributed checkpoint headers and norm vectors are read, not every number: "
            "gather it first (python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR OUT.pt)"
        )
    if checkpoint.container is None:
        return
    packed = sorted({t.dtype for t in checkpoint.tensors.values()} - {"F32", "F16", "BF16", "F64", "I8", "I16", "I32"})
    if packed:
        count = sum(t.dtype in packed for t in checkpoint.tensors.values())
        raise RequestError(
            f"{checkpoint.source}: {count:,} tensors are packed in blocks ({', '.join(packed)}), which are not "
            "decoded: --level headers reads the rest, or dequantise it first"
        )
