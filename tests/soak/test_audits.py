"""Damaged checkpoints through the whole audit: a verdict or one clear line, quickly, whatever the bytes are."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockaudit import pipeline
from blockaudit.errors import RequestError
from blockaudit.report import json_report
from tests.checkpoint.mutate import damage
from tests.support.checkpoint import family

IN_PROCESS = 20_000
THROUGH_CLI = 300
SLOWEST = 2.0  # seconds
ADDRESS_SPACE = 2 << 30
FILES = ("model.safetensors", "config.json")


def _sound(folder: Path) -> dict[str, bytes]:
    family("llama")(folder)
    return {name: (folder / name).read_bytes() for name in FILES}


def _damaged(folder: Path, sound: dict[str, bytes], dice: random.Random) -> None:
    """The sound checkpoint with one file damaged, sometimes both."""
    hurt = dice.choice((("model.safetensors",), ("config.json",), FILES))
    for name, data in sound.items():
        (folder / name).write_bytes(damage(data, dice) if name in hurt else data)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_thousand_damaged_checkpoints(tmp_path: Path) -> None:
    sound = _sound(tmp_path / "sound")
    folder = tmp_path / "damaged"
    folder.mkdir()
    verdicts: set[str] = set()
    for seed in range(IN_PROCESS):
        _damaged(folder, sound, random.Random(seed))
        began = time.perf_counter()
        try:
            report = pipeline.inspect(folder)
            json_report.render(report)
            verdicts.add(report.verdict)
        except RequestError:
            verdicts.add("request")
        assert time.perf_counter() - began < SLOWEST, seed
    assert {"accepted", "rejected", "unverified"} <= verdicts


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_three_hundred_damaged_checkpoints_through_the_command_line(tmp_path: Path) -> None:
    sound = _sound(tmp_path / "sound")
    for seed in range(THROUGH_CLI):
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _damaged(folder, sound, random.Random(seed))
        before = sorted(p.name for p in folder.iterdir())
        began = time.perf_counter()
        outcome = subprocess.run(
            [sys.executable, "-m", "blockaudit", "inspect", str(folder)],
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=_limited,
        )
        assert time.perf_counter() - began < SLOWEST, seed
        assert outcome.returncode in (0, 1, 2, 3), (seed, outcome.stderr)
        assert "Traceback" not in outcome.stderr, (seed, outcome.stderr)
        assert (outcome.returncode == 2) == bool(outcome.stderr), (seed, outcome.stderr)
        assert sorted(p.name for p in folder.iterdir()) == before
