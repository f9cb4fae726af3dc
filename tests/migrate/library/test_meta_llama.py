"""LLaMA as Meta stores it, to transformers and back: one file and several ranks, all three generations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("ranks", [1, 2])
def test_numbered_rows(tmp_path: Path, ranks: int) -> None:
    """Four heads of q and two of k and v, eight rows each: even rows first, then odd ones; those of v stay."""
    weights = meta.weights(PLAIN, 1)
    for name, rows in (("wq", 32), ("wk", 16), ("wv", 16)):
        weights[f"layers.0.attention.{name}.weight"] = torch.arange(rows).float()[:, None].repeat(1, 32)
    meta.save(meta.sharded(weights, ranks), meta.config(PLAIN), tmp_path / "source")
    found = stored(there("meta_llama", tmp_path / "source", tmp_path / "target"))
    q, k, v = (found[f"model.layers.0.self_attn.{name}_proj.weight"][:, 0].int().tolist() for name in "qkv")
    assert q == [
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
        16, 18, 20, 22, 17, 19, 21, 23, 24, 26, 28, 30, 25, 27, 29, 31,
    ]  # fmt: skip
    assert k == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert v == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]


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
    report = convert(tmp_path / "source", tmp_path / "target", map_="meta_llama", writing=WRITING)
    assert (report.kind, report.verdict) == ("rejection", "rejected")
    (finding,) = report.findings
    assert "layers.1.ffn_norm.weight" in finding.message
    assert "copies along axis r hold other bytes" in finding.message
    assert not (tmp_path / "target").exists()
