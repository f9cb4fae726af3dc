"""What a checkpoint says about itself, before any weight is read."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any

import msgspec

# Bits per element of every dtype that the safetensors format (0.6 and later) names.
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


# What tells one file under a path from another, and a file from itself written over: device, inode, bytes, time in ns.
Identity = tuple[int, int, int, int]
# Dimensions of one tensor: NumPy has no more, and PyTorch no use for them.
MAX_RANK = 64
# Held to where a header is decoded: what is longer is read the slow way, which says what is wrong.
_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class TensorHeader(msgspec.Struct, frozen=True, gc=False):
    """One tensor as a header describes it.

    A msgspec struct and not a dataclass: a header of 90,000 tensors is decoded straight into these.

    shape is in elements; data_offsets are the first and last + 1 byte, relative to the data section of
    the file that holds the tensor (`FileHeader.data_start`).
    """

    dtype: str
    shape: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=MAX_RANK)]
    data_offsets: tuple[_Number, _Number]

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Fault(msgspec.Struct, frozen=True):
    """Something wrong with a file, found while reading it. `rule` is a rule name of group F, K or S."""

    rule: str
    file: str
    message: str
    tensors: tuple[str, ...] = ()
    expected: Any = None
    observed: Any = None
    evidence: str = ""


class FileHeader(msgspec.Struct, frozen=True):
    """One weight file: its name as reported (relative to SOURCE), size and tensors.

    `readable` is false where the header could not be understood: its keys are unknown, not absent.
    """

    name: str
    path: str
    size: int
    container: str  # safetensors | torch-zip | torch-legacy | torch-distributed | gguf
    data_start: int
    tensors: dict[str, TensorHeader]
    metadata: dict[str, str] = {}
    readable: bool = True
    # Tensors that share one storage (pickled state dicts only): key -> storage id.
    storages: dict[str, str] = {}
    # Keys whose elements do not lie side by side (pickled state dicts only): their byte range runs from first to last.
    strided: frozenset[str] = frozenset()
    # The file that the header was read from; None where nobody looked.
    identity: Identity | None = None


class Origin(msgspec.Struct, frozen=True):
    """The commit of a hub that was read: the SHA-256 that it publishes of its files, and how many bytes were read."""

    revision: str
    hashes: dict[str, str]
    read: int


class Container(msgspec.Struct, frozen=True):
    """What a container says of the model itself, where it has no config.json (GGUF).

    `places` maps a config key to where its value was read from; `inferred` are keys whose value only tensors show.
    """

    architecture: str
    metadata: dict[str, Any]
    places: dict[str, str] = {}
    inferred: frozenset[str] = frozenset()


class Checkpoint(msgspec.Struct, frozen=True):
    """Everything SOURCE says: files, merged tensors, config.json and the faults met on the way."""

    source: str
    format: str  # safetensors | torch | gguf, sharded- before each; torch-distributed | megatron-core
    folder: str  # where config.json was looked for
    files: tuple[FileHeader, ...]
    tensors: dict[str, TensorHeader]
    owner: dict[str, FileHeader]
    config: dict[str, Any] | None
    faults: tuple[Fault, ...]
    sidecars: tuple[str, ...] = ()  # other files beside the weights that are known and not read (training_args.bin)
    adapter: dict[str, Any] | None = None  # adapter_config.json
    container: Container | None = None  # of a container that carries its own configuration
    base: str = ""  # the SOURCE of the model that the adapter `source` is added to
    apart: dict[str, str] = {}  # files that lie in another folder: those of such an adapter, by name

    @property
    def readable(self) -> bool:
        return all(f.readable for f in self.files)
