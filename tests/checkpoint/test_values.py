from __future__ import annotations

import hashlib
import math
import struct
import tracemalloc
from pathlib import Path

import pytest

from blockaudit.checkpoint.nonfinite import NonFinite, count_nonfinite
from blockaudit.checkpoint.values import close_files, equal, read_block, read_vector, sampled_equal
from blockaudit.records.checkpoint import Checkpoint
from tests.checkpoint.build import Shape, opened, safetensors, values
from tests.checkpoint.test_pickle import state, tensor, text, zipped

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _closed() -> object:
    yield None
    close_files()


def bf16(*numbers: float) -> bytes:
    return b"".join(struct.pack("<f", n)[2:] for n in numbers)


def one(tmp_path: Path, dtype: str, shape: Shape, raw: bytes) -> Checkpoint:
    return opened(values(tmp_path / "m.safetensors", {"pad": ("U8", (3,), b"xyz"), "w": (dtype, shape, raw)}))


@pytest.mark.parametrize(
    ("dtype", "raw"),
    [
        ("F32", struct.pack("<4f", 1.5, -2.0, 0.25, 3.0)),
        ("F64", struct.pack("<4d", 1.5, -2.0, 0.25, 3.0)),
        ("F16", struct.pack("<4e", 1.5, -2.0, 0.25, 3.0)),
        ("BF16", bf16(1.5, -2.0, 0.25, 3.0)),
    ],
)
def test_statistics_of_a_vector(tmp_path: Path, dtype: str, raw: bytes) -> None:
    stats = read_vector(one(tmp_path, dtype, (2, 2), raw), "w")
    assert stats is not None
    assert (stats.mean, stats.minimum, stats.maximum) == (0.6875, -2.0, 3.0)
    assert (stats.count, stats.non_finite, stats.constant) == (4, 0, False)
    assert stats.digest == hashlib.sha256(raw).digest()


def test_a_constant_vector(tmp_path: Path) -> None:
    stats = read_vector(one(tmp_path, "BF16", (5,), bf16(1, 1, 1, 1, 1)), "w")
    assert stats is not None
    assert stats.constant
    assert stats.mean == 1.0
    single = read_vector(one(tmp_path, "F32", (), struct.pack("<f", 2)), "w")
    assert single is not None
    assert single.constant


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    stats = read_vector(one(tmp_path, "F32", (5,), struct.pack("<5f", 1, NAN, INF, -INF, 3)), "w")
    assert stats is not None
    assert (stats.non_finite, stats.mean, stats.minimum, stats.maximum) == (3, 2.0, 1.0, 3.0)
    stats = read_vector(one(tmp_path, "F16", (1,), struct.pack("<e", NAN)), "w")
    assert stats is not None
    assert (stats.non_finite, math.isnan(stats.mean)) == (1, True)


def test_a_sum_beyond_float64_is_still_finite(tmp_path: Path) -> None:
    stats = read_vector(one(tmp_path, "F64", (2,), struct.pack("<2d", 1e308, 1e308)), "w")
    assert stats is not None
    assert (stats.non_finite, stats.maximum) == (0, 1e308)


def test_vectors_that_are_not_read(tmp_path: Path) -> None:
    assert read_vector(one(tmp_path, "F32", (4,), bytes(16)), "w", limit=3) is None
    assert read_vector(one(tmp_path, "F8_E4M3", (4,), bytes(4)), "w") is None
    assert read_vector(one(tmp_path, "F32", (0,), b""), "w") is None
    path = safetensors(tmp_path / "short.safetensors", {"w": ("F32", (4,))}, bytes(12))
    assert read_vector(opened(path), "w") is None
    assert read_vector(opened(zipped(tmp_path, state(text("w"), tensor(b"K\x02\x85", b"K\x02\x85")))), "w") is None


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    for number in (1.0, 2.0):
        stats = read_vector(one(tmp_path, "F32", (1,), struct.pack("<f", number)), "w")
        assert stats is not None
        assert stats.mean == number


def test_read_block(tmp_path: Path) -> None:
    ckpt = one(tmp_path, "U8", (6,), b"abcdef")
    assert read_block(ckpt, "w", 2, 3) == b"cde"
    assert read_block(ckpt, "w", 4, 100) == b"ef"
    assert read_block(ckpt, "w", 6, 1) == b""
    assert read_block(ckpt, "w", -1, 1) == b""


def two(tmp_path: Path, a: bytes, b: bytes, shape: Shape | None = None) -> Checkpoint:
    return opened(values(tmp_path / "m.safetensors", {"a": ("U8", (len(a),), a), "b": ("U8", shape or (len(b),), b)}))


@pytest.mark.parametrize("size", [1, 4096, 4097, 100_000, 9 << 20])
def test_equality(tmp_path: Path, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    ckpt = two(tmp_path, data, data)
    assert sampled_equal(ckpt, "a", "b")
    assert equal(ckpt, "a", "b")
    for at in {0, size - 1}:
        changed = bytearray(data)
        changed[at] ^= 1
        ckpt = two(tmp_path, data, bytes(changed))
        assert not sampled_equal(ckpt, "a", "b")
        assert not equal(ckpt, "a", "b")


def test_a_sample_may_miss_what_the_whole_does_not(tmp_path: Path) -> None:
    data = bytearray(1 << 20)
    data[70_000 - 1000] = 1  # between the first block and the second, which starts at 69,632
    ckpt = two(tmp_path, bytes(1 << 20), bytes(data))
    assert sampled_equal(ckpt, "a", "b")
    assert not equal(ckpt, "a", "b")


def test_equality_wants_shape_and_dtype(tmp_path: Path) -> None:
    ckpt = two(tmp_path, b"abcd", b"abcd", (2, 2))
    assert not sampled_equal(ckpt, "a", "b")
    assert not equal(ckpt, "a", "b")
    path = values(tmp_path / "m.safetensors", {"a": ("U8", (4,), b"abcd"), "b": ("I8", (4,), b"abcd")})
    assert not equal(opened(path), "a", "b")


def test_one_storage_is_equal_unread(tmp_path: Path) -> None:
    path = zipped(tmp_path, state(text("a"), tensor(), text("b"), tensor()))
    ckpt = opened(path)
    path.unlink()
    assert sampled_equal(ckpt, "a", "b")
    assert equal(ckpt, "a", "b")


@pytest.mark.parametrize(
    ("dtype", "raw", "count", "first"),
    [
        ("F32", struct.pack("<4f", 1, NAN, INF, -INF), 3, 1),
        ("F64", struct.pack("<3d", 1e308, 1, NAN), 1, 2),
        ("F16", struct.pack("<4e", 65504, -INF, 0, NAN), 2, 1),
        ("BF16", bf16(INF, 3.0, NAN), 2, 0),
        ("F8_E4M3", bytes([0x7E, 0x7F, 0xFF, 0x78]), 2, 1),
        ("F8_E5M2", bytes([0x7B, 0x7C, 0xFD, 0x00]), 2, 1),
        ("I32", struct.pack("<2i", -1, 2**31 - 1), 0, -1),
        ("F32", b"", 0, -1),
    ],
)
def test_values_that_are_not_finite_by_their_bits(
    tmp_path: Path, dtype: str, raw: bytes, count: int, first: int
) -> None:
    width = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2, "I32": 4}.get(dtype, 1)
    ckpt = one(tmp_path, dtype, (len(raw) // width,), raw)
    assert count_nonfinite(ckpt, "w") == NonFinite(count, first, True)


def test_a_large_tensor_is_streamed(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    size = 48 << 20
    raw = bytearray(size)
    raw[-2:] = bf16(NAN)
    path = values(tmp_path / "m.safetensors", {"w": ("BF16", (size // 2,), bytes(raw))})
    ckpt = opened(path)
    del raw
    tracemalloc.start()
    assert count_nonfinite(ckpt, "w") == NonFinite(1, size // 2 - 1, True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_a_tensor_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"w": ("F32", (4,))}, bytes(12))
    assert count_nonfinite(opened(path), "w") == NonFinite(0, -1, False)
