"""Every map of the library, spoilt in every way that it can be spoilt in: `map check` names it, on headers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockaudit.pipeline.mapping import check_map
from blockaudit.records.report import Report
from tests.migrate.library.mistakes import LIBRARY, MISTAKES, Map, holding, library

# Of the places of one mistake in one map, so many are tried at most: the first, the last and one between.
_PLACES = 3


def _made() -> list[tuple[str, str]]:
    """Which mistakes can be made in which map."""
    return [(m, name) for m in LIBRARY for name, (spoil, _) in MISTAKES.items() if next(spoil(library(m)), None)]


def _checked(map_: Map, folder: Path) -> Report:
    path = folder / "map.json"
    path.write_text(json.dumps(map_))
    return check_map(str(path))


@pytest.mark.parametrize("reverse", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("name", LIBRARY)
def test_every_map_is_accepted_both_ways(name: str, *, reverse: bool) -> None:
    report = check_map(name, reverse=reverse)
    assert report.verdict == "accepted", [(f.name, f.message) for f in report.findings]


@pytest.mark.parametrize(("name", "mistake"), _made())
def test_a_mistake_is_refused(name: str, mistake: str, tmp_path: Path) -> None:
    spoil, rules = MISTAKES[mistake]
    places = list(spoil(library(name)))
    tried = {*range(0, len(places), max(1, len(places) // (_PLACES - 1))), len(places) - 1}
    for place, faulty in (places[n] for n in sorted(tried)):
        sound = holding(library(name), faulty)
        if sound != library(name):  # the map as it is stands in a test of its own
            assert _checked(sound, tmp_path).verdict == "accepted", place
        report = _checked(faulty, tmp_path)
        assert report.verdict == "rejected", place
        assert rules & {f.name for f in report.findings if f.severity == "error"}, (place, report.findings)


def test_every_mistake_can_be_made_somewhere() -> None:
    assert {mistake for _, mistake in _made()} == set(MISTAKES)
