"""Damaged checkpoints: sound files with bytes changed, lost, doubled and replaced by what hurts."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from pathlib import Path

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.errors import RequestError
from tests.checkpoint.build import safetensors, sharded
from tests.checkpoint.test_pickle import HUGE, legacy, state, tensor, text, zipped

NAMES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "legacy.bin", "config.json")
HURTFUL = [
    b'"', b"{", b"}", b"[", b"]", b",", b"-", b"\\u0000", b"\\ud800", b"NaN", b"1e999", b"9" * 30, b"true", b"null",
    b'"a":', b'"__metadata__":{},', b'"../x"', b"[" * 2000, b"\0", b"\xff", struct.pack("<Q", 2**63),
    struct.pack("<I", 2**31), b"\x80\x02", b".", b"R", b"b", b"(", b"t", b"u", b"s", b"Q", b"h\x00", b"q\x00",
    b"r\xff\xff\xff\x7f", b"cos\nsystem\n", b"ctorch\nSize\n", b"PK\x03\x04", b"2\x86" * 50, *HUGE.values(),
]  # fmt: skip


def seeds(folder: Path) -> dict[str, bytes]:
    """Sound files of every kind that is read, by the name that they are written under."""
    pickled = state(text("a"), tensor(), text("b"), tensor(b"K\x03\x85", b"K\x01\x85", b"K\x03"))
    sound = {
        "model.safetensors": safetensors(
            folder / "s.safetensors", {"a": ("F32", (2,)), "b": ("BF16", (2, 3))}
        ).read_bytes(),
        "model.safetensors.index.json": (sharded(folder) / "model.safetensors.index.json").read_bytes(),
        "pytorch_model.bin": zipped(folder, pickled).read_bytes(),
        "legacy.bin": legacy(folder).read_bytes(),
        "config.json": b'{"model_type": "llama", "hidden_size": 8, "rope": {"a": [1, 2.5, null]}}',
    }
    assert tuple(sound) == NAMES
    return sound


def damage(data: bytes, dice: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(made) + 1)
        end = min(len(made), at + dice.choice((0, 1, 1, 2, 8, 60)))
        action = dice.randrange(5)
        if action == 0 and at < len(made):
            made[at] ^= 1 << dice.randrange(8)
        elif action == 1:
            del made[at:end]
        elif action == 2:
            made[at:at] = made[at:end]
        elif action == 3:
            made[at:end] = dice.choice(HURTFUL)
        else:
            made[at:at] = dice.choice(HURTFUL)
    return bytes(made)


def survive(path: Path) -> tuple[float, int]:
    """Open what may be anything. Returns seconds and peak bytes; only RequestError may be raised."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        ckpt = open_checkpoint(str(path))
        for fault in ckpt.faults:
            assert fault.message.encode("utf-8")
        assert ckpt.tensors.keys() == ckpt.owner.keys()
        for key in ckpt.tensors:
            assert key.encode("utf-8") is not None
    except RequestError:
        pass  # nothing to audit is an answer; any other exception is a failure
    finally:
        seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return seconds, peak


def attempt(folder: Path, name: str, sound: bytes, seed: int) -> None:
    path = folder / name
    path.write_bytes(damage(sound, random.Random(seed)))
    if name == "config.json" and not (folder / "model.safetensors").exists():
        safetensors(folder / "model.safetensors", {"a": ("F32", (2,))})
    seconds, peak = survive(folder if name == "config.json" else path)
    assert seconds < 2, (name, seed)
    assert peak < 32 << 20, (name, seed, peak)
