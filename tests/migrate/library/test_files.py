"""The files of the library: every layout and every map stands the test that a user's own file is held to."""

from __future__ import annotations

import json

import pytest

from blockaudit import resources
from blockaudit.manifest.check import check
from blockaudit.manifest.validate import block_manifest, document_of
from blockaudit.records.migration import MigrationMap

LAYOUTS, MAPS = resources.layout_ids(), resources.map_ids()
TARGETS = {json.loads(resources.map_path(name).read_bytes())["target"] for name in MAPS}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str) -> None:
    path = resources.manifest_path(name)
    manifest = block_manifest(path.read_bytes(), path.name)
    assert not list(check(manifest))
    assert manifest.architecture_id == name
    assert manifest.source
    # A checkpoint is never taken for one of these by its config; what a map writes is of a model type all the same.
    assert not manifest.match.model_types or name in TARGETS


@pytest.mark.parametrize("name", MAPS)
def test_map(name: str) -> None:
    path = resources.map_path(name)
    map_ = document_of("migration_map", MigrationMap, path.read_bytes(), path.name)
    assert map_.name == name
    assert map_.evidence
    known = {*resources.manifest_ids(), *LAYOUTS}
    assert {map_.source, map_.target} <= known
    assert all(drop.why for drop in map_.drop)
    assert json.loads(path.read_bytes())["schema"] == "blockaudit/map/1"


def test_every_layout_is_one_that_a_map_reads_or_writes() -> None:
    ends = [json.loads(resources.map_path(name).read_bytes()) for name in MAPS]
    assert {*LAYOUTS} <= {end for map_ in ends for end in (map_.get("source"), map_["target"])}
