from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.mutate import NAMES, attempt, seeds

ROUNDS = 20_000


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_twenty_thousand_damaged_files(tmp_path: Path, name: str) -> None:
    source = tmp_path / "seeds"
    source.mkdir()
    sound = seeds(source)[name]
    for seed in range(ROUNDS):
        attempt(tmp_path, name, sound, seed)
