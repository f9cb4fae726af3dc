from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from blockaudit.migrate.convert.run import Progress  # noqa: E402
from blockaudit.records.operations import Transpose  # noqa: E402
from tests.migrate.convert import hand, interrupted  # noqa: E402

TYPES: dict[str, tuple[str, tuple[int, ...]]] = {f"layers.{n}.w": ("F32", (512, 700 + n)) for n in range(12)}


def plan() -> Any:
    steps = [
        hand.step(TYPES, [key], [Transpose()] if n % 3 == 0 else [], [f"model.{key}"], n) for n, key in enumerate(TYPES)
    ]
    return hand.plan(steps)


def killed_at(times: int, tmp_path: Path, **options: Any) -> dict[str, int]:
    """Kill a conversion so often at random moments, then let it finish. Returns what was met how often."""
    source = hand.source(tmp_path / "s", TYPES, shards=2)
    before = hand.hashes(source)
    options = {"most": 7_000_000, **options}
    hand.run(source, tmp_path / "reference", plan(), **options)
    wanted = hand.hashes(tmp_path / "reference")
    size = sum((tmp_path / "reference" / name).stat().st_size for name in wanted if name.endswith(".safetensors"))
    random_, target = random.Random(20), tmp_path / "t"
    met = {"killed": 0, "whole": 0, "resumed": 0}

    def convert(progress: Progress) -> None:
        hand.run(source, target, plan(), progress=progress, **options)

    for _ in range(times):
        met["resumed"] += hand.partial(target).exists()
        # Now and then in what comes after the last byte: names, reports, the rename.
        after, later = random_.choice([(random_.randrange(size), 0.0), (random_.randrange(size), 0.01), (size, 0.2)])
        met["killed"] += interrupted.killed(convert, after, random_.random() * later)
        if interrupted.whole_or_absent(target, wanted):
            met["whole"] += 1
            # Begin anew: every kill is one of a conversion.
            shutil.rmtree(target)
        assert hand.hashes(source) == before
    hand.run(source, target, plan(), **options)
    assert hand.hashes(target) == wanted
    assert not hand.partial(target).exists()
    assert hand.hashes(source) == before
    return met


def test_a_killed_conversion_leaves_nothing_and_the_next_run_finishes(tmp_path: Path) -> None:
    met = killed_at(10, tmp_path)
    assert met["killed"] >= 5
    assert met["resumed"] >= 3


@pytest.mark.parametrize("options", [{"hashing": False}, {"durable": False}, {"hashing": False, "durable": False}])
def test_also_without_hashes_or_fsync(tmp_path: Path, options: dict[str, bool]) -> None:
    assert killed_at(4, tmp_path, **options)["killed"]
