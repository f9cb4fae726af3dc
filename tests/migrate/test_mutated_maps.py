"""Whatever a map says, the check answers: a report or one line, and never a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from blockaudit.errors import RequestError
from blockaudit.pipeline import check_map
from blockaudit.report.json_report import render
from tests.migrate.mutations import mutated


def answer(file: Path, seed: int) -> str:
    """The verdict on a mutated map, or `refused`; its JSON is written as well, which must not fail either."""
    rng = random.Random(seed)
    file.write_text(json.dumps(mutated(rng)), encoding="utf-8")
    try:
        report = check_map(str(file), reverse=rng.random() < 0.3)
    except RequestError as error:
        return "refused" if "\n" not in str(error) else "several lines"
    assert json.loads(render(report))["kind"] == "map"
    return report.verdict


@pytest.mark.parametrize("seed", range(12))
def test_mutated_maps(seed: int, tmp_path: Path) -> None:
    said = [answer(tmp_path / "map.json", 1000 * seed + n) for n in range(10)]
    assert "rejected" in said
    assert "several lines" not in said
