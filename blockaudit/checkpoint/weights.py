"""One weight file, whatever its container: told apart by its first bytes, and by its name where they say nothing."""

from __future__ import annotations

import os

from blockaudit.checkpoint.files import lfs_size, open_regular, pread_all, reason
from blockaudit.checkpoint.header import lfs_fault, read_header, unread
from blockaudit.records.checkpoint import Fault, FileHeader

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
WEIGHT_SUFFIXES = (".safetensors", *PICKLE_SUFFIXES)

_EXPORT = "blockaudit reads safetensors and PyTorch state dicts"
# First bytes, what they are, what to do.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"GGUF", "a GGUF file", "audit the Hugging Face checkpoint that it was converted from"),
    (b"\x89HDF\r\n", "an HDF5 file (Keras or TensorFlow)", "convert it with from_pretrained(..., from_tf=True)"),
    (b"\x93NUMPY", "a NumPy array", "save the arrays by name with safetensors.numpy.save_file"),
)
# The same for formats without magic bytes, or whose bytes are those of another container.
_SUFFIX: dict[str, tuple[str, str]] = {
    ".gguf": ("a GGUF file", "audit the Hugging Face checkpoint that it was converted from"),
    ".onnx": ("an ONNX graph", "audit the PyTorch checkpoint that it was exported from"),
    ".npz": ("a NumPy archive", "save the arrays by name with safetensors.numpy.save_file"),
    ".npy": ("a NumPy array", "save the arrays by name with safetensors.numpy.save_file"),
    ".h5": ("an HDF5 file (Keras or TensorFlow)", "convert it with from_pretrained(..., from_tf=True)"),
    ".msgpack": ("a Flax checkpoint", "convert it with from_pretrained(..., from_flax=True)"),
    ".tflite": ("a TensorFlow Lite model", "audit the checkpoint that it was converted from"),
    ".pb": ("a TensorFlow graph", "audit the checkpoint that it was exported from"),
    ".nemo": ("a NeMo archive", "unpack it and audit the weights inside"),
}
FOREIGN_SUFFIXES = tuple(_SUFFIX)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def refusal(name: str, what: str, remedy: str) -> Fault:
    """A format that is known and not read."""
    return Fault("unreadable-file", name, f"this is {what}; {_EXPORT}: {remedy}")


def _is_safetensors(head: bytes, size: int) -> bool:
    return len(head) > 8 and int.from_bytes(head[:8], "little") + 8 <= size and head[8:9] == b"{"


def _sniff(head: bytes, size: int, name: str) -> str:
    """safetensors, zip, pickle, tar, lfs or nothing."""
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    if lfs_size(head) is not None:
        return "lfs"
    if _suffix(name) == ".safetensors" or _is_safetensors(head, size):
        return "safetensors"
    return "tar" if head[257:262] == b"ustar" else ""


def _foreign(head: bytes, name: str) -> Fault | None:
    for magic, what, remedy in _MAGIC:
        if head.startswith(magic):
            return refusal(name, what, remedy)
    known = _SUFFIX.get(_suffix(name))
    return refusal(name, *known) if known else None


def _read_lfs(head: bytes, path: str, name: str, size: int) -> tuple[FileHeader, list[Fault]]:
    return unread(path, name, size, _container(name)), [lfs_fault(name, lfs_size(head) or -1, size)]


def _container(name: str) -> str:
    return "safetensors" if _suffix(name) == ".safetensors" else "torch-zip"


def _unknown(head: bytes, name: str, size: int) -> Fault:
    if size == 0:
        return Fault("truncated-file", name, "the file is empty", observed=0)
    if head[257:262] == b"ustar":
        return refusal(
            name, "a tar archive, as PyTorch wrote before 0.1.10", "load it there and save its state dict anew"
        )
    return Fault("unreadable-file", name, f"its first bytes ({head[:8].hex(' ')}) are those of no format; {_EXPORT}")


def read_weights(path: str, name: str) -> tuple[FileHeader, list[Fault]]:
    """Read the header of one weight file of any container, reported as `name`. Everything wrong with it is a fault."""
    try:
        fd, size = open_regular(path)
    except OSError as error:
        return unread(path, name, 0, _container(name)), [
            Fault("unreadable-file", name, f"cannot be read: {reason(error)}")
        ]
    try:
        head = pread_all(fd, 1024, 0)
    except OSError as error:
        return unread(path, name, size, _container(name)), [
            Fault("unreadable-file", name, f"cannot be read: {reason(error)}")
        ]
    finally:
        os.close(fd)
    fault = _foreign(head, name)
    if fault is not None:
        return unread(path, name, size, _container(name)), [fault]
    kind = _sniff(head, size, name)
    if kind == "lfs":
        return _read_lfs(head, path, name, size)
    if not kind and size and _suffix(name) in PICKLE_SUFFIXES:
        kind = "pickle"  # of a protocol without magic bytes: if it is one, what it asks for is worth naming
    if kind in ("zip", "pickle") and _suffix(name) != ".safetensors":
        from blockaudit.checkpoint.pickle_reader import read_pickle  # only pickles pay for zipfile and pickletools

        return read_pickle(path, name)
    if kind == "safetensors" or _suffix(name) == ".safetensors":
        return read_header(path, name)
    return unread(path, name, size, _container(name)), [_unknown(head, name, size)]


def looks_like_weights(path: str) -> bool:
    """Whether a file with a name that says nothing holds weights by its first bytes."""
    try:
        fd, size = open_regular(path)
    except OSError:
        return False
    try:
        head = pread_all(fd, 1024, 0)
    except OSError:
        return False
    finally:
        os.close(fd)
    return _sniff(head, size, path) != "" or any(head.startswith(magic) for magic, _, _ in _MAGIC)
