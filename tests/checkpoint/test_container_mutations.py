"""GGUF headers and distributed metadata, damaged: an answer every time, in bounded time and memory."""

from __future__ import annotations

import random
import shutil
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.mutate import damage, survive
from tests.support.audit import inspect
from tests.support.gguf import llama, write

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ROUNDS = 10_000
# Where a header says how much is to come: the counts, then lengths, types and dimensions among names.
HEADER = 3000


def gguf(folder: Path) -> Path:
    return write(folder / "model.gguf", llama())


def distributed(folder: Path) -> Path:
    pytest.importorskip("torch")
    from tests.support.distributed import save, weights

    some = {key: tensor for key, tensor in weights().items() if "layers.0" in key}
    return save(folder, some) / ".metadata"


def spoil(raw: bytes, seed: int) -> bytes:
    """Bytes changed anywhere in the part that is read, or a number in it replaced by one that is far too large."""
    dice = random.Random(seed)
    head, rest = raw[:HEADER], raw[HEADER:]
    if dice.random() < 0.5:
        return damage(head, dice) + rest
    at = dice.randrange(len(head) - 8)
    number = dice.choice((2**64 - 1, 2**63, 2**32 - 1, 2**40, 0, 8, 255))
    return head[:at] + struct.pack("<Q", number) + head[at + 8 :] + rest


def attempt(path: Path, raw: bytes, seed: int) -> None:
    path.write_bytes(spoil(raw, seed))
    seconds, peak = survive(path)
    assert seconds < 2, seed
    assert peak < 64 << 20, (seed, peak)


def audited(path: Path, raw: bytes, seed: int) -> None:
    path.write_bytes(spoil(raw, seed))
    start = time.perf_counter()
    outcome = inspect(path)
    assert outcome.status in (0, 1, 2, 3)
    assert "Traceback" not in outcome.err
    assert time.perf_counter() - start < 10, seed


KINDS = {"gguf": gguf, "distributed": distributed}


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = KINDS[request.param](tmp_path_factory.mktemp(request.param) / "ckpt")
    inspect(path)  # what is imported is not counted
    return path, path.read_bytes()


@QUICK
@given(seed=st.integers(0, 2**32))
def test_damaged(made: tuple[Path, bytes], seed: int) -> None:
    attempt(*made, seed)


@settings(QUICK, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_damaged_and_audited(made: tuple[Path, bytes], seed: int) -> None:
    audited(*made, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand(made: tuple[Path, bytes]) -> None:
    for seed in range(ROUNDS):
        attempt(*made, seed)
    for seed in range(ROUNDS // 10):
        audited(*made, seed)


@QUICK
@given(content=st.binary(max_size=200), version=st.sampled_from([2, 3]))
def test_any_bytes_after_the_version(tmp_path: Path, content: bytes, version: int) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<I", version) + content)
    survive(tmp_path / "m.gguf")


def test_an_array_of_a_billion_texts_is_not_read(tmp_path: Path) -> None:
    key = b"general.tags"
    head = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key)) + key + struct.pack("<IIQ", 9, 8, 10**9)
    (tmp_path / "m.gguf").write_bytes(head + bytes(1 << 20))
    seconds, peak = survive(tmp_path / "m.gguf")
    assert seconds < 2
    assert peak < 32 << 20


def test_the_seed_is_sound(made: tuple[Path, bytes], tmp_path: Path) -> None:
    path, raw = made
    path.write_bytes(raw)
    folder = tmp_path / "sound"
    shutil.copytree(path.parent, folder)
    assert not [n for n in inspect(folder / path.name).names if n in ("corrupt-header", "unreadable-file")]
