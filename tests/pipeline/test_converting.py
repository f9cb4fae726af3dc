"""`convert --conform`: what the numbers decide, and what is done then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit.errors import RequestError
from blockaudit.migrate.work import Work
from blockaudit.pipeline import conforming, converting
from blockaudit.pipeline.converting import Writing, convert
from blockaudit.records.migration import Plan
from tests.migrate.convert import hand

TINY = Path(__file__).parents[2] / "fixtures" / "tiny_llama"
WRITING = Writing(shard_bytes=10**9, conform=True)


def spoil(monkeypatch: pytest.MonkeyPatch, key: str, with_: str) -> None:
    """A plan in which two targets get each other's tensors: a fault of the planner that headers cannot show."""
    really: Callable[[Work], Plan] = converting.plan

    def planned(work: Work) -> Plan:
        made = really(work)
        one, other = (next(s for s in made.steps if s.outputs == (k,)) for k in (key, with_))
        swapped = {
            id(one): replace(one, sources=other.sources, in_types=other.in_types),
            id(other): replace(other, sources=one.sources, in_types=one.in_types),
        }
        return replace(made, steps=tuple(swapped.get(id(s), s) for s in made.steps))

    monkeypatch.setattr(converting, "plan", planned)


def test_the_target_computes_what_the_source_does(tmp_path: Path) -> None:
    report = convert(TINY, tmp_path / "t", map_="phi3_llama", reverse=True, writing=WRITING)
    assert (report.kind, report.verdict) == ("conversion", "accepted")
    found = hand.report(tmp_path / "t").conform
    assert found is not None
    assert (found["against"], found["dtype"], found["mode"]) == ("source", "float32", "end-to-end")
    assert found["comparisons"] > 50
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t"]
    assert "trace.safetensors" not in hand.hashes(tmp_path / "t")


def test_a_target_that_computes_otherwise_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = "model.layers.2."
    spoil(monkeypatch, f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight")
    report = convert(TINY, tmp_path / "t", map_="phi3_llama", reverse=True, writing=WRITING)
    assert (report.kind, report.verdict) == ("rejection", "rejected")
    assert report.conformance is not None
    assert report.conformance.first is not None
    assert report.conformance.first.site == "layers.2.self_attention.norm_in"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_made_leaves_no_model_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RequestError("no memory")

    monkeypatch.setattr(conforming, "conform", fail)
    with pytest.raises(RequestError, match="no memory"):
        convert(TINY, tmp_path / "t", map_="phi3_llama", reverse=True, writing=WRITING)
    left = hand.hashes(hand.partial(tmp_path / "t") / "whole")
    assert "config.json.part" in left
    assert not {"config.json", "model.safetensors"} & left.keys()
    monkeypatch.undo()
    assert convert(TINY, tmp_path / "t", map_="phi3_llama", reverse=True, writing=WRITING).verdict == "accepted"


def test_a_source_that_no_class_runs_says_what_was_compared(tmp_path: Path) -> None:
    titan = tmp_path / "titan"
    convert(TINY, titan, map_="torchtitan_llama", reverse=True, writing=Writing(shard_bytes=10**9))
    report = convert(titan, tmp_path / "t", map_="torchtitan_llama", writing=WRITING)
    assert report.verdict == "accepted"
    found = hand.report(tmp_path / "t").conform
    assert found is not None
    assert found["against"] == "manifest"
    assert "the source could not be run" in found["said"]
    assert str(tmp_path) not in found["said"]
