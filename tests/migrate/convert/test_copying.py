from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockaudit.migrate.convert import copying


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[int, int]]:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 64)
    a, b = os.open(tmp_path / "a", os.O_RDONLY), os.open(tmp_path / "b", os.O_RDWR | os.O_CREAT)
    yield a, b
    os.close(a)
    os.close(b)


@pytest.mark.parametrize("refused", [0, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_range_is_copied_whatever_the_kernel_can(
    pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    if refused:

        def refuse(*_: Any) -> int:
            raise OSError(refused, os.strerror(refused))

        monkeypatch.setattr(os, "copy_file_range", refuse)
    assert copying.copy_range(*_at(pair, 7, 13), 1000) == 1000
    assert os.pread(pair[1], 2000, 13) == os.pread(pair[0], 1000, 7)


def test_a_call_that_copies_less_is_made_again(pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda s, t, n, a, b: whole(s, t, min(n, 100), a, b))
    assert copying.copy_range(*_at(pair, 1, 0), 5000) == 5000
    assert os.pread(pair[1], 5000, 0) == os.pread(pair[0], 5000, 1)


def test_a_source_that_ends_early_is_told_by_the_count(pair: tuple[int, int]) -> None:
    assert copying.copy_range(*_at(pair, 64 * 256 - 10, 0), 100) == 10


def test_no_room_is_no_reason_to_try_otherwise(pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(OSError, match="No space left"):
        copying.copy_range(*_at(pair, 0, 0), 100)


def _at(pair: tuple[int, int], start: int, offset: int) -> tuple[int, int, int, int]:
    return pair[0], start, pair[1], offset
