"""Drafted manifests: a checkpoint of each family, saved by transformers, is known by its config and holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from blockaudit import pipeline, resources
from blockaudit.graph import live
from blockaudit.graph.drafting import samples
from blockaudit.manifest.load import library

DRAFTED = sorted({*resources.manifest_ids()} - {*resources.handmade_ids()})
FEW = DRAFTED[::12]


def _saved(family: str, folder: Path) -> Path:
    """A tiny checkpoint of the class that the manifest was drafted from."""
    manifest = library(family).manifest
    model_type = manifest.match.model_types[0]
    class_name = manifest.source.split()[-1]
    config = transformers.CONFIG_MAPPING[model_type].from_dict(samples.base(model_type, class_name))
    torch.manual_seed(4)
    cls: Any = getattr(transformers, class_name)
    model = cls._from_config(config).float().eval()
    live.randomise(model)
    model.save_pretrained(folder)
    return folder


def _holds(family: str, folder: Path) -> None:
    report = pipeline.inspect(_saved(family, folder), level="graph")
    errors = [(f.name, f.subject, f.message) for f in report.findings if f.severity == "error"]
    assert (errors, report.verdict) == ([], "accepted")
    assert report.manifest is not None
    assert (report.manifest.id, report.manifest.chosen_by) == (family, "config")


@pytest.mark.parametrize("family", FEW)
def test_some_drafted_families_are_accepted_at_graph_level(family: str, tmp_path: Path) -> None:
    _holds(family, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("family", DRAFTED)
def test_every_drafted_family_is_accepted_at_graph_level(family: str, tmp_path: Path) -> None:
    _holds(family, tmp_path)


def test_every_drafted_manifest_says_what_it_was_drafted_from() -> None:
    for family in DRAFTED:
        manifest = library(family).manifest
        assert manifest.source.startswith("drafted from the executed graph of transformers "), family
        assert manifest.witness == "graph", family
