"""Thousands of mutated maps: an answer each, in bounded time."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.migrate.test_mutated_maps import answer

MAPS, SECONDS = 5_000, 5.0

pytestmark = pytest.mark.soak


def test_mutated_maps_are_answered(tmp_path: Path) -> None:
    said: Counter[str] = Counter()
    slowest = 0.0
    for seed in range(MAPS):
        begun = time.process_time()
        said[answer(tmp_path / "map.json", 1_000_000 + seed)] += 1
        slowest = max(slowest, time.process_time() - begun)
    print(f"\n{MAPS:,} maps: {dict(said)}; slowest {slowest:.2f} s of processor")
    assert said["rejected"] > MAPS // 2
    assert said["several lines"] == 0
    assert slowest < SECONDS
