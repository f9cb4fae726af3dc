"""Repositories that are more than one plain model: sub-folders of a commit, and a base that lies on a hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.rules.test_adapters import adapter
from tests.rules.test_parts import pipeline, sentence
from tests.support.audit import inspect
from tests.support.checkpoint import family
from tests.support.hub import COMMIT, SOURCE, Hub, sha256_of

Serve = Callable[[Path], Hub]


def test_the_transformer_of_a_sentence_transformers_repository(connected: Serve, tmp_path: Path) -> None:
    folder = sentence("0_Transformer")(tmp_path)
    connected(folder)
    outcome = inspect(SOURCE)
    assert (outcome.status, outcome.grave) == (0, []), outcome.err
    assert outcome.report is not None
    subject = outcome.report["subject"]
    assert (subject["source"], subject["revision"]) == (f"{SOURCE}/0_Transformer", COMMIT)
    assert subject["hashes"] == {"model.safetensors": sha256_of(folder / "0_Transformer" / "model.safetensors")}
    notes = [f["message"] for f in outcome.findings if f["name"] == "part-not-covered"]
    assert any("2_Dense/model.safetensors" in message for message in notes)


def test_several_text_encoders_on_a_hub_are_named_and_not_guessed_among(connected: Serve, tmp_path: Path) -> None:
    connected(pipeline("t5", "t5")(tmp_path))
    outcome = inspect(SOURCE)
    assert (outcome.status, outcome.report) == (2, None)
    assert "2 text models (text_encoder, text_encoder_2)" in outcome.err


def test_a_base_on_a_hub(connected: Serve, tmp_path: Path) -> None:
    connected(family("llama")(tmp_path / "served"))
    outcome = inspect(adapter()(tmp_path / "a"), "--base", SOURCE)
    assert (outcome.status, outcome.grave) == (0, []), outcome.err
    assert outcome.report is not None
    assert outcome.report["subject"]["base"] == SOURCE
    assert outcome.report["subject"]["revision"] == COMMIT
