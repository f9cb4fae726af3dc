"""LLaMA as Meta stores it, to transformers and back: one file and several ranks, all three generations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockaudit.errors import RequestError
from blockaudit.pipeline.converting import convert
from blockaudit.pipeline.mapping import check_map
from tests.migrate.library.layouts import meta
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import WRITING, agree, back, computed, same_bytes, stored, there


@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_llama_3(tmp_path: Path, sizes: Sizes, ranks: int) -> None:
    params, weights = meta.config(sizes), meta.weights(sizes, 1)
    meta.save(meta.sharded(weights, ranks), params, tmp_path / "source")
    target = there("meta_llama", tmp_path / "source", tmp_path / "target")
    agree(computed(target, tokens(sizes)), meta.logits(weights, params, tokens(sizes)))
    # The way back is to one rank.
    same_bytes(back("meta_llama", target, tmp_path / "again"), weights)


def test_llama_3_1_with_stretched_frequencies(tmp_path: Path) -> None:
    params, weights = {**meta.config(PLAIN), "rope_theta": 5e5, "use_scaled_rope": True}, meta.weights(PLAIN, 2)
    meta.save(meta.sharded(weights, 2), params, tmp_path / "source")
    target = there("meta_llama31", tmp_path / "source", tmp_path / "target")
    wanted = meta.logits(weights, params, tokens(PLAIN))
    agree(computed(target, tokens(PLAIN)), wanted)
    same_bytes(back("meta_llama31", target, tmp_path / "again"), weights)
    plain = meta.logits(weights, {**params, "use_scaled_rope": False}, tokens(PLAIN))
    assert (plain - wanted).abs().max() > 1e-3  # the stretch is seen at this length


@pytest.mark.parametrize("ranks", [1, 2])
def test_llama_2_whose_embedding_is_cut_along_its_width(tmp_path: Path, ranks: int) -> None:
    params = {k: v for k, v in meta.config(PLAIN).items() if k != "rope_theta"} | {"vocab_size": -1}
    vocab = 32_000  # the tokenizer's, which -1 stands for
    weights = meta.weights(Sizes(vocab=vocab), 3)
    shards = meta.sharded(weights, ranks, embedding=1)
    for shard in shards:
        shard["rope.freqs"] = 1e4 ** (-torch.arange(0, 8, 2) / 8)
    meta.save(shards, params, tmp_path / "source")
    target = there("meta_llama2", tmp_path / "source", tmp_path / "target")
    agree(computed(target, tokens(Sizes(vocab=vocab))), meta.logits(weights, params, tokens(Sizes(vocab=vocab))))
    same_bytes(back("meta_llama2", target, tmp_path / "again"), weights)


def test_the_width_is_read_off_the_tensor_of_all_ranks(tmp_path: Path) -> None:
    meta.save(meta.sharded(meta.weights(PLAIN, 1), 2), meta.config(PLAIN), tmp_path / "source")
    target = there("meta_llama", tmp_path / "source", tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    assert config["intermediate_size"] == 48
    assert stored(target)["model.layers.0.mlp.gate_proj.weight"].shape == (48, 32)
    assert config["rope_parameters"] == {"rope_theta": 5000.0, "rope_type": "default"}


@pytest.mark.parametrize(
    ("map_", "rule", "said"),
    [
        (
            "meta_llama31",
            "topology-change-needs-retraining",
            "decoder.self_attention.rotary.type: 'default' -> 'llama3'",
        ),
        ("meta_llama2", "map-shape-mismatch", "model.embed_tokens.weight"),
    ],
)
def test_the_map_of_another_generation_is_refused(tmp_path: Path, map_: str, rule: str, said: str) -> None:
    meta.save(meta.sharded(meta.weights(PLAIN, 1), 2), meta.config(PLAIN), tmp_path / "source")
    report = check_map(map_, tmp_path / "source")
    assert any(f.name == rule and said in f.message for f in report.findings), report.findings


def test_stretched_frequencies_are_not_dropped_in_silence(tmp_path: Path) -> None:
    meta.save([meta.weights(PLAIN, 1)], {**meta.config(PLAIN), "use_scaled_rope": True}, tmp_path / "source")
    report = check_map("meta_llama", tmp_path / "source")
    assert "topology-change-needs-retraining" in {f.name for f in report.findings}


def test_copies_of_a_norm_that_differ_are_refused(tmp_path: Path) -> None:
    shards = meta.sharded(meta.weights(PLAIN, 1), 2)
    shards[1]["layers.1.ffn_norm.weight"][3] += 1e-3
    meta.save(shards, meta.config(PLAIN), tmp_path / "source")
    with pytest.raises(RequestError, match=r"layers\.1\.ffn_norm\.weight: copies along axis r hold other bytes"):
        convert(tmp_path / "source", tmp_path / "target", map_="meta_llama", writing=WRITING)
    assert not (tmp_path / "target").exists()
