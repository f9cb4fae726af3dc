"""Containers that are known by name and not read: what each one is, and what to audit in its place.

One table by first bytes, one by the end of a name, one by what lies in a folder. Archives that need a look at their
entries (TorchScript, torch.package, Keras) are told apart in `zip_kind`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from blockaudit.records.checkpoint import Fault

READS = "blockaudit reads safetensors, PyTorch state dicts and distributed checkpoints, and GGUF"
_FROM = "audit the checkpoint that it was converted from"
_EXPORTED = "audit the PyTorch checkpoint that it was exported from"
_ARRAYS = "save the arrays by name with safetensors.numpy.save_file"
_KERAS = "load it in Keras, and save the weights by name with safetensors.numpy.save_file"

Kind = tuple[str, str]
# First bytes, what they are, what to do.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89HDF\r\n", "an HDF5 file (Keras or TensorFlow)", "convert it with from_pretrained(..., from_tf=True)"),
    (b"\x93NUMPY", "a NumPy array", _ARRAYS),
    (b"ftrt", "a TensorRT engine", _EXPORTED),
    (b"lmgg", "a GGML file from before GGUF", "convert it anew to GGUF, or " + _FROM),
    (b"fmgg", "a GGML file from before GGUF", "convert it anew to GGUF, or " + _FROM),
    (b"tjgg", "a GGML file from before GGUF", "convert it anew to GGUF, or " + _FROM),
)
# Ends of names, for formats without first bytes of their own, or with those of another container.
_SUFFIX: dict[str, Kind] = {
    ".onnx": ("an ONNX graph", _EXPORTED),
    ".onnx_data": ("the external data of an ONNX graph", _EXPORTED),
    ".onnx.data": ("the external data of an ONNX graph", _EXPORTED),
    ".npz": ("a NumPy archive (NumPy, JAX or MLX)", _ARRAYS),
    ".npy": ("a NumPy array", _ARRAYS),
    ".h5": ("an HDF5 file (Keras or TensorFlow)", "convert it with from_pretrained(..., from_tf=True)"),
    ".hdf5": ("an HDF5 file (Keras or TensorFlow)", "convert it with from_pretrained(..., from_tf=True)"),
    ".keras": ("a Keras archive", _KERAS),
    ".msgpack": ("a Flax checkpoint", "convert it with from_pretrained(..., from_flax=True)"),
    ".tflite": ("a TensorFlow Lite model", _FROM),
    ".pb": ("a TensorFlow graph", "audit the checkpoint that it was exported from"),
    ".ckpt.index": ("a TensorFlow checkpoint", "convert it with from_pretrained(..., from_tf=True)"),
    ".ckpt.meta": ("a TensorFlow checkpoint", "convert it with from_pretrained(..., from_tf=True)"),
    ".engine": ("a TensorRT engine", _EXPORTED),
    ".plan": ("a TensorRT engine", _EXPORTED),
    ".trt": ("a TensorRT engine", _EXPORTED),
    ".mlmodel": ("a Core ML model", _EXPORTED),
    ".mlpackage": ("a Core ML package", _EXPORTED),
    ".mlmodelc": ("a compiled Core ML model", _EXPORTED),
    ".zarr": ("a Zarr store", "load it where it was saved, and save a state dict as safetensors"),
    ".nemo": ("a NeMo archive", "unpack it and audit the weights inside"),
}
_TENSORFLOW_DATA = re.compile(r"\.data-\d{5}-of-\d{5}", re.ASCII)
# Names that by themselves tell what a folder is.
_FOLDER: dict[str, Kind] = {
    ".zarray": _SUFFIX[".zarr"],
    ".zgroup": _SUFFIX[".zarr"],
    "zarr.json": _SUFFIX[".zarr"],
    "_CHECKPOINT_METADATA": ("an Orbax checkpoint (JAX)", "load it with Orbax, and save the arrays as safetensors"),
}
_CT2_HEAD = 48


def refusal(name: str, what: str, remedy: str) -> Fault:
    """A container that is known and not read."""
    return Fault("unreadable-file", name, f"this is {what}; {READS}: {remedy}")


def by_name(name: str) -> Kind | None:
    """What a name says a file or a folder is."""
    lower = os.path.basename(name.rstrip("/")).lower()
    if lower.startswith("openvino_") and lower.endswith((".bin", ".xml")):
        return "an OpenVINO model", _EXPORTED
    if _TENSORFLOW_DATA.fullmatch(os.path.splitext(lower)[1]):
        return _SUFFIX[".ckpt.index"]
    return next((kind for suffix, kind in _SUFFIX.items() if lower.endswith(suffix)), None)


def by_bytes(head: bytes) -> Kind | None:
    """What the first bytes of a file say it is."""
    for magic, what, remedy in _MAGIC:
        if head.startswith(magic):
            return what, remedy
    # CTranslate2: a version of four bytes, then the name of the specification, with its length in two.
    version, length = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:6], "little")
    if 0 < version < 100 and 5 < length <= _CT2_HEAD and head[6 : 6 + length].rstrip(b"\0").endswith(b"Spec"):
        return "a CTranslate2 model", _FROM
    return None


def in_folder(folder: str, names: Iterable[str]) -> tuple[str, Kind] | None:
    """The first name, the folder's own or one in it, of a container that is not read, and what it is."""
    own = by_name(folder)
    if own is not None:
        return os.path.basename(folder.rstrip("/")), own
    for name in names:
        kind = _FOLDER.get(name) or by_name(name)
        if kind is not None:
            return name, kind
    return None


def zip_kind(names: list[str]) -> Kind | None:
    """What a zip archive is by the names of its entries, where it is no state dict."""
    tails = {name.partition("/")[2] for name in names}
    if "constants.pkl" in tails and any(tail.startswith("code/") for tail in tails):
        return "a TorchScript archive, which holds code", "save the state dict of the original model"
    if any(tail.startswith(".data/") for tail in tails) and ".data/extern_modules" in tails:
        return "a torch.package archive, which holds code", "save the state dict of the model inside"
    if "model.weights.h5" in names:
        return "a Keras archive", _KERAS
    if names and all(name.endswith(".npy") for name in names):
        return "a NumPy archive (NumPy, JAX or MLX)", _ARRAYS
    return None
