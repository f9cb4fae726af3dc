"""One field of config.json flipped: the operators show it, in types with and without a manifest in the library."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit import pipeline
from blockaudit.graph.norms import Norm
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import record
from blockaudit.graph.stream import Branch, Stream
from tests.families import models

FALCON_NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}


@cache
def _streams(family: str, flipped: tuple[tuple[str, Any], ...]) -> dict[str, Stream]:
    from transformers import CONFIG_MAPPING

    given = {**models.CONFIGS.get(family, models.GIVEN), **dict(flipped)}
    config = {**CONFIG_MAPPING[family](**given).to_dict(), "model_type": family}
    recording = record(json.loads(json.dumps(config, default=str)))
    reader = Reader(recording)
    streams = {name: reader.stream(end) for name, end in recording.hidden.items()}
    assert all(s.unread == () for s in streams.values())
    return streams


def stream(family: str, **flipped: Any) -> Stream:
    return _streams(family, tuple(flipped.items()))["decoder"]


def branches(read: Stream) -> list[Branch]:
    return [b for add in read.adds for b in add.branches]


def entries(read: Stream) -> list[list[str]]:
    """The weight of the norm that each branch reads through, add by add."""
    return [[b.norm_in.weight if b.norm_in else "" for b in add.branches] for add in read.adds]


def inner(read: Stream) -> list[list[str]]:
    """The norms inside each attention, by the name of their weight within the layer."""
    attention = [b for b in branches(read) if b.kind == "causal_self_attention"]
    return [[n.weight.partition(".self_attn.")[2] for n in b.inner] for b in attention]


def norms(read: Stream) -> list[Norm]:
    found = [n for b in branches(read) for n in (b.norm_in, b.norm_out)] + [read.final_norm]
    return [n for n in found if n is not None]


def test_persimmon_qk_layernorm() -> None:
    assert inner(stream("persimmon")) == [["q_layernorm.weight", "k_layernorm.weight"]] * 3
    assert inner(stream("persimmon", qk_layernorm=False)) == [[]] * 3


def test_phi_qk_layernorm() -> None:
    assert inner(stream("phi")) == [[]] * 3
    assert inner(stream("phi", qk_layernorm=True)) == [["q_layernorm.weight", "k_layernorm.weight"]] * 3


@pytest.mark.parametrize(
    ("flipped", "expected"),
    [
        ({}, [["input_layernorm", "input_layernorm"]] * 3),
        (FALCON_NEW, [["ln_attn", "ln_mlp"]] * 3),
        ({**FALCON_NEW, "num_ln_in_parallel_attn": 1}, [["input_layernorm", "input_layernorm"]] * 3),
        ({"parallel_attn": False}, [["input_layernorm"], ["post_attention_layernorm"]] * 3),
    ],
    ids=["one norm, parallel", "two norms, parallel", "new architecture, one norm", "sequential"],
)
def test_the_variants_of_falcon(flipped: dict[str, Any], expected: list[list[str]]) -> None:
    read = stream("falcon", **flipped)
    assert [[w.split(".")[-2] for w in add] for add in entries(read)] == expected
    # One norm that two branches read is one value, not two that are alike.
    outputs = [{b.norm_in.output for b in add.branches if b.norm_in} for add in read.adds]
    assert all((len(found) == 1) == (len(set(names)) == 1) for found, names in zip(outputs, expected, strict=True))


def test_cohere_shares_one_norm() -> None:
    read = stream("cohere")
    assert [len(add.branches) for add in read.adds] == [2] * 3
    for add in read.adds:
        first, second = (b.norm_in for b in add.branches)
        assert first is not None
        assert second is not None
        assert first.output is second.output


def test_gemma_is_not_llama() -> None:
    gemma, llama = norms(stream("gemma")), norms(stream("llama"))
    assert {(n.family, n.scale_offset, n.cast_order) for n in gemma} == {("rmsnorm", 1, "cast_after_scale")}
    assert {(n.family, n.scale_offset, n.cast_order) for n in llama} == {("rmsnorm", 0, "cast_before_scale")}


@pytest.mark.parametrize("value", [1e-5, 1e-3])
def test_llama_epsilon(value: float) -> None:
    epsilons = [n.epsilon for n in norms(stream("llama", rms_norm_eps=value))]
    assert epsilons == pytest.approx([value] * 7, rel=1e-2)


def test_t5_has_a_final_norm_in_each_stack() -> None:
    streams = _streams("t5", ())
    finals = {name: s.final_norm for name, s in streams.items()}
    assert {n: f.weight for n, f in finals.items() if f is not None} == {
        "encoder": "encoder.final_layer_norm.weight",
        "decoder": "decoder.final_layer_norm.weight",
    }
    for epsilon in (1e-6, 1e-3):
        read = _streams("t5", (("layer_norm_epsilon", epsilon),))
        found = [s.final_norm.epsilon for s in read.values() if s.final_norm]
        assert found == pytest.approx([epsilon] * 2, rel=1e-2)


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_tie_word_embeddings(family: str, tmp_path: Path) -> None:
    """The class shares one parameter or has two, and a pinned manifest sees the flip whichever way it goes."""
    from transformers import CONFIG_MAPPING

    from blockaudit.manifest.draft import encode

    def own_head(tied: bool) -> bool:
        made = CONFIG_MAPPING[family](**models.CONFIGS[family], tie_word_embeddings=tied).to_dict()
        return "lm_head.weight" in record({**made, "model_type": family}).sizes

    assert [own_head(True), own_head(False)] == [False, True]
    folder = tmp_path / "model"
    models.build(family).save_pretrained(folder)
    pinned = tmp_path / "pinned.json"
    pinned.write_text(encode(pipeline.draft(folder, pin=True, level="graph").manifest), encoding="utf-8")
    assert pipeline.inspect(folder, manifest=str(pinned), level="graph").verdict == "accepted"
    path = folder / "config.json"
    config = json.loads(path.read_text())
    flipped = not config.get("tie_word_embeddings", family == "gemma")
    path.write_text(json.dumps({**config, "tie_word_embeddings": flipped}), encoding="utf-8")
    report = pipeline.inspect(folder, manifest=str(pinned), level="graph")
    assert report.verdict == "rejected"
    assert {f.name for f in report.findings} & {"tied-weights-mismatch", "alias-missing", "missing-key"}
