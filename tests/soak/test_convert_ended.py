"""A conversion that is killed, or meets a full disk, at many random moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migrate.convert.test_full import full_at
from tests.migrate.convert.test_killed import killed_at

pytestmark = pytest.mark.soak


def test_killed_at_two_hundred_moments(tmp_path: Path) -> None:
    met = killed_at(200, tmp_path)
    print(met)
    assert met["killed"] >= 150


@pytest.mark.parametrize("options", [{"hashing": False}, {"durable": False}])
def test_killed_without_hashes_or_fsync(tmp_path: Path, options: dict[str, bool]) -> None:
    assert killed_at(50, tmp_path, **options)["killed"] >= 35


def test_a_full_disk_at_twenty_points(tmp_path: Path) -> None:
    full_at(20, tmp_path)
