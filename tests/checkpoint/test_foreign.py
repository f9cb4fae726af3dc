"""Containers that are not read: each is called by its name, in one line, with what to do."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from blockaudit.checkpoint.source import open_checkpoint
from tests.checkpoint.build import only, opened
from tests.checkpoint.test_source import refused


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as it:
        for name in names:
            it.writestr(name, b"")
    return made.getvalue()


CT2 = b"\x06\0\0\0" + (16).to_bytes(2, "little") + b"TransformerSpec\0" + bytes(40)
FILES = {
    "TorchScript": ("model.pt", archive("m/constants.pkl", "m/code/__torch__.py", "m/data.pkl")),
    "torch.package": ("model.pt", archive("m/.data/extern_modules", "m/.data/version")),
    "CTranslate2": ("model.bin", CT2),
    "NumPy archive": ("weights.npz", archive("a.npy", "b.npy")),
    "NumPy array": ("weights.npy", b"\x93NUMPY\x01\0"),
    "ONNX graph": ("model.onnx", b"\x08\x08"),
    "external data of an ONNX": ("model.onnx_data", bytes(64)),
    "TensorFlow checkpoint": ("bert_model.ckpt.index", bytes(64)),
    "a TensorFlow checkpoint": ("bert_model.ckpt.data-00001-of-00002", bytes(64)),
    "TensorFlow graph": ("saved_model.pb", b"\x08\x01"),
    "Flax": ("flax_model.msgpack", b"\x81\xa5"),
    "HDF5": ("tf_model.h5", b"\x89HDF\r\n\x1a\n"),
    "Keras archive": ("model.keras", archive("metadata.json", "model.weights.h5")),
    "TensorRT": ("rank0.engine", b"ftrt" + bytes(60)),
    "Core ML model": ("model.mlmodel", bytes(64)),
    "OpenVINO": ("openvino_model.bin", bytes(64)),
    "GGML": ("ggml-model.bin", b"lmgg" + bytes(60)),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file(what: str, tmp_path: Path) -> None:
    name, content = FILES[what]
    (tmp_path / name).write_bytes(content)
    fault = only(opened(tmp_path / name))
    assert fault.rule == "unreadable-file"
    assert what in fault.message
    assert not open_checkpoint(str(tmp_path / name)).readable


FOLDERS = {
    "ONNX graph": ("onnx", "model.onnx"),
    "TensorFlow graph": ("tf", "saved_model.pb"),
    "Flax": ("flax", "flax_model.msgpack"),
    "Zarr": ("store", ".zgroup"),
    "Core ML package": ("Model.mlpackage", "Manifest.json"),
    "OpenVINO": ("ov", "openvino_model.bin"),
    "Orbax": ("orbax", "_CHECKPOINT_METADATA"),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder(what: str, tmp_path: Path) -> None:
    folder, name = FOLDERS[what]
    (tmp_path / folder).mkdir()
    (tmp_path / folder / name).write_bytes(b"{}")
    assert what in refused(tmp_path / folder)


def test_weights_that_are_read_come_first(tmp_path: Path) -> None:
    from tests.checkpoint.build import safetensors

    (tmp_path / "model.onnx").write_bytes(b"")
    safetensors(tmp_path / "model.safetensors", {"a": ("F32", (2,))})
    assert opened(tmp_path).format == "safetensors"
