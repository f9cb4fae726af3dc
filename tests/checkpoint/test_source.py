from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.errors import RequestError
from tests.checkpoint.build import only, opened, rules, safetensors, sharded

ONE = {"w": ("F32", (2,))}


def refused(source: str | Path) -> str:
    with pytest.raises(RequestError) as caught:
        open_checkpoint(str(source))
    message = str(caught.value)
    assert "\n" not in message
    assert str(source) in message or not str(source)
    return message


def test_a_folder_with_one_file_and_a_config(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", (2,))})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    ckpt = opened(tmp_path)
    assert (ckpt.format, ckpt.config, ckpt.faults) == ("safetensors", {"model_type": "llama"}, ())
    assert (ckpt.files[0].name, ckpt.folder, ckpt.source) == ("model.safetensors", str(tmp_path), str(tmp_path))


def test_a_single_file_takes_the_config_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors(tmp_path / "x.safetensors", {"w": ("F32", (2,))})
    (tmp_path / "config.json").write_text("{}")
    assert opened(tmp_path / "x.safetensors").config == {}
    monkeypatch.chdir(tmp_path)
    ckpt = open_checkpoint("x.safetensors")
    assert (ckpt.files[0].name, ckpt.folder, ckpt.config) == ("x.safetensors", ".", {})


def test_what_is_preferred_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"not opened")
    safetensors(tmp_path / "zzz.safetensors", {"z": ("F32", (2,))})
    sharded(tmp_path)
    assert opened(tmp_path).format == "sharded-safetensors"
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", (2,))})
    ckpt = opened(tmp_path)
    assert (ckpt.format, list(ckpt.tensors)) == ("safetensors", ["w"])


def test_exactly_one_other_file(tmp_path: Path) -> None:
    safetensors(tmp_path / "weights.safetensors", {"w": ("F32", (2,))})
    assert opened(tmp_path).files[0].name == "weights.safetensors"
    safetensors(tmp_path / "more.safetensors", {"w": ("F32", (2,))})
    assert "several weight files" in refused(tmp_path)


def test_shards_without_an_index(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").unlink()
    assert "expected model.safetensors.index.json" in refused(tmp_path)


def test_training_state_is_named_and_not_opened(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", (2,))})
    names = ["optimizer.pt", "rng_state.pth", "rng_state_0.pth", "scheduler.pt", "training_args.bin"]
    for name in names:
        os.mkfifo(tmp_path / name)  # opening one would block for ever
    ckpt = opened(tmp_path)
    assert ckpt.sidecars == tuple(names)
    assert ckpt.faults == ()


def test_a_folder_of_training_state_only(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(b"x")
    assert "no weights" in refused(tmp_path)
    assert "training state" in refused(tmp_path / "training_args.bin")


def test_a_folder_of_checkpoints_names_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        safetensors(tmp_path / name / "model.safetensors", {"w": ("F32", (2,))})
    (tmp_path / "logs").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "a", target_is_directory=True)
    assert f"2 of its folders hold a checkpoint (a, b): name what to audit, as {tmp_path / 'a'}" in refused(tmp_path)


def test_nothing_to_audit(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none")
    assert "empty" in refused(tmp_path)
    (tmp_path / "README.md").write_text("# hello")
    assert "no weights" in refused(tmp_path)
    assert "not a checkpoint" in refused(tmp_path / "README.md")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "not a checkpoint" in refused(tmp_path / "tokenizer.json")
    refused("")
    refused("a\0b")
    refused("x" * 5000)
    refused("/dev/null")


def test_a_folder_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    assert "model.onnx is an ONNX graph" in refused(tmp_path)


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(_: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.os, "listdir", deny)
    assert "permission denied" in refused(tmp_path)


def test_content_tells_what_a_name_does_not(tmp_path: Path) -> None:
    safetensors(tmp_path / "weights", {"w": ("F32", (2,))})
    assert list(opened(tmp_path / "weights").tensors) == ["w"]


@pytest.mark.parametrize("name", ["m.gguf", "m.onnx", "m.npz", "m.h5", "m.msgpack"])
def test_other_formats_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(64))
    ckpt = opened(tmp_path / name)
    assert only(ckpt).rule == "unreadable-file"
    assert not ckpt.readable


def test_a_broken_file_that_is_named_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\0" * 4)
    assert only(opened(tmp_path / "m.safetensors")).rule == "truncated-file"
    (tmp_path / "m.bin").write_bytes(b"")
    assert only(opened(tmp_path / "m.bin")).rule == "truncated-file"
    (tmp_path / "m.pt").write_bytes(b"\xfe" * 100)
    assert only(opened(tmp_path / "m.pt")).rule == "unreadable-file"
    (tmp_path / "l.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    assert (only(opened(tmp_path / "l.bin")).rule, only(opened(tmp_path / "l.bin")).expected) == ("lfs-pointer", 12)


def config(tmp_path: Path, text: str | bytes) -> Path:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", (2,))})
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, b"\xff\xfe",
        b'{"a": "\\ud800"}',
             '{"a": ' + "9" * 5000 + "}"]
)  # fmt: skip
def test_a_config_that_is_none(tmp_path: Path, text: str | bytes) -> None:
    ckpt = opened(config(tmp_path, text))
    assert (only(ckpt).rule, only(ckpt).file, ckpt.config) == ("config-invalid", "config.json", None)
    assert list(ckpt.tensors) == ["w"]


def test_a_config_with_a_key_twice(tmp_path: Path) -> None:
    ckpt = opened(config(tmp_path, '{"eps": 1e-5, "eps": 1e-6}'))
    assert (only(ckpt).rule, only(ckpt).observed, ckpt.config) == ("config-invalid", "eps", {"eps": 1e-6})
    assert opened(config(tmp_path, '{"eps": 1e-5, "eps": 1e-5}')).faults == ()


def test_infinity_in_a_config_is_read_as_python_does(tmp_path: Path) -> None:
    ckpt = opened(config(tmp_path, '{"time_step_limit": [0.0, Infinity]}'))
    assert ckpt.faults == ()
    assert ckpt.config == {"time_step_limit": [0.0, float("inf")]}


def test_a_config_of_17_megabytes_is_not_read(tmp_path: Path) -> None:
    assert only(opened(config(tmp_path, "{}" + " " * (17 << 20)))).rule == "config-invalid"


def test_a_linked_config(tmp_path: Path) -> None:
    config(tmp_path, "{}")
    (tmp_path / "config.json").rename(tmp_path / "blob")
    (tmp_path / "config.json").symlink_to("blob")
    assert opened(tmp_path).config == {}
    (tmp_path / "blob").unlink()
    assert only(opened(tmp_path)).rule == "config-invalid"


def test_nothing_is_written(tmp_path: Path) -> None:
    config(sharded(tmp_path), "{}")
    before = {p: (p.stat().st_mtime_ns, stat.S_IMODE(p.stat().st_mode)) for p in tmp_path.iterdir()}
    opened(tmp_path)
    assert before == {p: (p.stat().st_mtime_ns, stat.S_IMODE(p.stat().st_mode)) for p in tmp_path.iterdir()}


def test_an_adapter(tmp_path: Path) -> None:
    key = "base_model.model.layers.0.q_proj.lora_{}.weight"
    pair = {key.format("A"): ("F32", (2, 4)), key.format("B"): ("F32", (4, 2))}
    safetensors(tmp_path / "adapter_model.safetensors", pair)
    assert rules(opened(tmp_path)) == ["adapter-only"]
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    ckpt = opened(tmp_path)
    assert (rules(ckpt), ckpt.adapter) == (["adapter-only"], {"peft_type": "LORA"})


def test_opening_safetensors_imports_nothing_heavy(tmp_path: Path) -> None:
    config(tmp_path, "{}")
    code = (
        "import sys; from blockaudit.checkpoint.source import open_checkpoint as o; o(sys.argv[1])\n"
        "heavy = {'torch', 'numpy', 'zipfile', 'pickletools', 'pickle', 'asyncio', 'hashlib', 'multiprocessing'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
