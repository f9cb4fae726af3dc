"""Drafts between two known manifests: what is proved, what is named, and what is never hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from blockaudit.manifest.load import library
from blockaudit.pipeline.map_drafting import MapDraft, draft_map
from blockaudit.records.migration import MoveRule
from blockaudit.records.operations import Concat, PermuteRope, Slice, Split, Stack, Transpose, Unstack
from tests.migrate.draft.sources import PAIRS, model
from tests.migrate.library.layouts import megatron_llama
from tests.migrate.library.layouts.sizes import PLAIN
from tests.migrate.library.proving import saved
from tests.migrate.library.test_megatron import ranked


def _to(drafted: MapDraft, target: str) -> MoveRule:
    """The rule that feeds a template."""
    return next(rule for rule in drafted.map.rules if target in rule.targets)


def _manifest(name: str, folder: Path, change: Any) -> str:
    """A manifest of the library with a change, as a user's file."""
    data = msgspec.to_builtins(library(name).manifest)
    change(data)
    path = folder / f"{name}_changed.json"
    path.write_text(json.dumps(data))
    return str(path)


def _edited(source: Path, change: Any) -> Path:
    weights = load_file(source / "model.safetensors")
    change(weights)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    return source


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("Mistral", {"sliding_window": 4}, "decoder.self_attention.window: 4 -> None"),
        ("Qwen2", {}, "decoder.self_attention.bias.q: True -> False"),
    ],
)
def test_another_function_is_named(tmp_path: Path, name: str, more: dict[str, Any], said: str) -> None:
    drafted = draft_map(model(name, tmp_path / "source", **more), "llama")
    assert not drafted.decided
    assert any(line.startswith("topology-change-needs-retraining") and said in line for line in drafted.refused)
    # What both have is drafted all the same.
    assert _to(drafted, "model.layers.{l}.mlp.up_proj.weight").ops == []


def test_one_key_for_two_values_is_undecided(tmp_path: Path) -> None:
    """LLaMA's attention_bias speaks of q, k, v and o; Qwen2 has three of the four."""
    drafted = draft_map(model("Qwen2", tmp_path / "source"), "llama")
    assert any(line.startswith("config.attention_bias: ") for line in drafted.undecided)
    assert drafted.map.supply["attention_bias"] is False
    assert any("q_proj.bias: it is decoder.self_attention q.bias of the source" in line for line in drafted.undecided)


def test_a_size_is_never_bent_to_make_a_scale_agree(tmp_path: Path) -> None:
    """Gemma scales embeddings by sqrt(d_model): no width makes that 1, but the width of 1."""
    drafted = draft_map(model("Llama", tmp_path / "source"), "gemma")
    assert "hidden_size" not in drafted.map.supply
    assert {line.partition(":")[0] for line in drafted.refused} == {"topology-change-needs-retraining"}
    assert any("decoder.embedding.scale: 1.0 -> 5.656" in line for line in drafted.refused)
    assert _to(drafted, "model.norm.weight").ops[-1].value == -1.0  # type: ignore[union-attr]


def test_rows_are_permuted_head_by_head_where_the_pairings_differ(tmp_path: Path) -> None:
    drafted = draft_map(model("Llama", tmp_path / "source"), "torchtitan_llama")
    q, k = (_to(drafted, f"layers.{{l}}.attention.qkv_linear.w{x}.weight").ops for x in "qk")
    assert q == [PermuteRope(heads="n_heads", from_="half", to="interleaved")]
    assert k == [PermuteRope(heads="n_kv", from_="half", to="interleaved")]
    assert _to(drafted, "layers.{l}.attention.qkv_linear.wv.weight").ops == []


def test_a_gain_of_each_coordinate_follows_its_rows(tmp_path: Path) -> None:
    """Qwen3 normalises q and k by coordinate of a head: permuted rows need permuted gains."""

    def interleaved(data: dict[str, Any]) -> None:
        data["stacks"][0]["branches"][0]["attention"]["rotary"]["pairing"] = "interleaved"

    target = _manifest("qwen3", tmp_path, interleaved)
    drafted = draft_map(model("Qwen3", tmp_path / "source", head_dim=8), target)
    assert drafted.decided, (drafted.undecided, drafted.refused)
    for x in "qk":
        rule = _to(drafted, f"model.layers.{{l}}.self_attn.{x}_norm.weight")
        assert rule.ops == [PermuteRope(heads=1, from_="half", to="interleaved")]


def test_a_fused_tensor_is_made_in_the_order_of_its_rows(tmp_path: Path) -> None:
    def up_first(data: dict[str, Any]) -> None:
        data["stacks"][0]["branches"][1]["feed_forward"]["fused"] = "up_gate"

    target = _manifest("phi3", tmp_path, up_first)
    drafted = draft_map(model("Llama", tmp_path / "source"), target)
    rule = _to(drafted, "model.layers.{l}.mlp.gate_up_proj.weight")
    assert rule.sources == [f"model.layers.{{l}}.mlp.{x}_proj.weight" for x in ("up", "gate")]
    assert rule.ops == [Concat(dim=0)]
    qkv = _to(drafted, "model.layers.{l}.self_attn.qkv_proj.weight")
    assert qkv.ops == [Concat(dim=0, layout="qkv", heads="n_heads", kv_heads="n_kv")]


def test_no_operation_reorders_a_fused_gate_and_up(tmp_path: Path) -> None:
    def up_first(data: dict[str, Any]) -> None:
        data["stacks"][0]["branches"][1]["feed_forward"]["fused"] = "up_gate"

    target = _manifest("phi3", tmp_path, up_first)
    drafted = draft_map(model("Phi3", tmp_path / "source"), target)
    assert any("gate_up_proj.weight: the source fuses gate and up as gate_up" in line for line in drafted.undecided)
    assert not any("gate_up" in rule.targets[0] for rule in drafted.map.rules)


def test_experts_are_taken_apart_again(tmp_path: Path) -> None:
    source = PAIRS["experts"].make(tmp_path / "source")
    stacked = draft_map(source, "mixtral_stacked")
    assert _to(stacked, "model.layers.{l}.mlp.experts.down_proj").ops == [Stack(dim=0, axis="e")]
    from tests.migrate.draft.test_library_pairs import written
    from tests.migrate.library.proving import there

    moved = there(written(stacked, tmp_path), source, tmp_path / "moved")
    back = draft_map(moved, "mixtral", source_manifest="mixtral_stacked")
    assert back.decided, (back.undecided, back.refused)
    rule = _to(back, "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight")
    assert rule.targets == [f"model.layers.{{l}}.block_sparse_moe.experts.{{e}}.w{n}.weight" for n in (1, 3)]
    assert rule.ops == [Unstack(dim=0, axis="e"), Split(dim=0)]


def test_padding_is_cut_off_by_its_symbol(tmp_path: Path) -> None:
    weights = megatron_llama.weights(PLAIN, 1, padded=128)
    source = saved(weights, megatron_llama.config(PLAIN, padded=128), tmp_path / "source")
    drafted = draft_map(source, "llama")
    op = _to(drafted, "model.embed_tokens.weight").ops[0]
    assert isinstance(op, Slice)
    assert (op.dim, op.stop, op.size) == (0, "vocab", "vocab_padded")


def test_conv1d_is_turned_and_its_bias_is_not(tmp_path: Path) -> None:
    drafted = draft_map(PAIRS["nanogpt"].make(tmp_path / "source"), "gpt2")
    assert _to(drafted, "transformer.h.{l}.mlp.c_fc.weight").ops == [Transpose(dims=(0, 1))]
    assert _to(drafted, "transformer.h.{l}.mlp.c_fc.bias").ops == []
    assert [drop.key for drop in drafted.map.drop] == ["transformer.h.{l}.attn.bias"]
    assert "derived" in drafted.map.drop[0].why


def test_fused_rows_of_several_ranks_are_undecided(tmp_path: Path) -> None:
    shards = megatron_llama.sharded(megatron_llama.weights(PLAIN, 2), 2)
    source = ranked(shards, megatron_llama.config(PLAIN), tmp_path / "source")
    drafted = draft_map(source, "llama", source_manifest="megatron_llama")
    assert drafted.map.ranks == "mp_rank_{r}/model_optim_rng.pt"
    assert {line.partition(":")[0] for line in drafted.undecided} == {
        *(f"model.layers.{{l}}.self_attn.{x}_proj.weight" for x in "qkv"),
        *(f"model.layers.{{l}}.mlp.{x}_proj.weight" for x in ("gate", "up")),
    }
    assert drafted.refused == ()
    # The axis along which the parts of ranks add up is seen, the others alike.
    assert _to(drafted, "model.layers.{l}.self_attn.o_proj.weight").ops == [Concat(dim=1, axis="r")]


def test_a_key_that_the_manifest_does_not_know_is_named(tmp_path: Path) -> None:
    def more(weights: dict[str, torch.Tensor]) -> None:
        weights["model.layers.1.extra"] = torch.zeros(3)
        weights["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    drafted = draft_map(_edited(model("Llama", tmp_path / "source"), more), "mistral")
    assert [line.partition(":")[0] for line in drafted.undecided] == ["model.layers.{n}.extra"]
    assert [drop.key for drop in drafted.map.drop] == ["model.layers.{l}.self_attn.rotary_emb.inv_freq"]


def test_a_prefix_before_every_key_is_seen_through(tmp_path: Path) -> None:
    source = model("Llama", tmp_path / "source")

    def wrapped(weights: dict[str, torch.Tensor]) -> None:
        for key in list(weights):
            weights[f"trainer.net.{key}"] = weights.pop(key)

    drafted = draft_map(_edited(source, wrapped), "llama")
    assert drafted.decided, (drafted.undecided, drafted.refused)
    assert drafted.map.source is None
    assert _to(drafted, "model.norm.weight").from_ == "trainer.net.model.norm.weight"
    assert "its keys behind trainer.net." in drafted.remarks[0]


def test_keys_that_two_layouts_have_decide_for_neither(tmp_path: Path) -> None:
    drafted = draft_map(PAIRS["meta_llama2"].make(tmp_path / "source"), "llama")
    assert drafted.remarks[0].startswith("the source's keys are those of meta_llama, meta_llama2 alike")
    assert drafted.map.source is None
    assert not drafted.decided


def test_a_width_that_no_config_gives_is_read_off_a_tensor(tmp_path: Path) -> None:
    drafted = draft_map(
        PAIRS["meta_llama of two ranks"].make(tmp_path / "source"), "llama", source_manifest="meta_llama"
    )
    size = drafted.map.supply["intermediate_size"]
    assert (size["tensor"], size["dim"], size["axis"]) == ("layers.0.feed_forward.w1.weight", 0, "r")


def test_a_head_that_is_tied_by_another_word(tmp_path: Path) -> None:
    source = PAIRS["neox, tied"].make(tmp_path / "source")
    drafted = draft_map(source, "gpt_neox")
    assert drafted.map.supply["tie_word_embeddings"] is True
    assert ("embed_out.weight", "gpt_neox.embed_in.weight") in drafted.map.alias


def test_a_config_key_of_one_name_and_another_meaning_is_not_carried(tmp_path: Path) -> None:
    """litgpt's vocab_size counts tokens; the rows, which LLaMA calls vocab_size, are its padded_vocab_size."""
    drafted = draft_map(PAIRS["litgpt"].make(tmp_path / "source"), "llama")
    assert drafted.map.config["padded_vocab_size"] == "vocab_size"
    assert drafted.map.config["vocab_size"] is None


def test_a_value_under_a_condition_is_no_key_of_its_own(tmp_path: Path) -> None:
    """litgpt stretches by rope_condense_ratio where that is not 1: it is not what LLaMA's rope_scaling is."""
    drafted = draft_map(PAIRS["litgpt"].make(tmp_path / "source"), "llama")
    assert drafted.map.config["rope_condense_ratio"] is None
    assert drafted.map.config["rope_base"] == "rope_theta"


def test_a_layer_is_counted_from_its_own_zero(tmp_path: Path) -> None:
    drafted = draft_map(PAIRS["neox"].make(tmp_path / "source"), "gpt_neox")
    assert (
        _to(drafted, "gpt_neox.layers.{l}.mlp.dense_h_to_4h.weight").from_
        == "sequential.{l+2}.mlp.dense_h_to_4h.weight"
    )
    assert _to(drafted, "gpt_neox.final_layer_norm.bias").from_ == "sequential.{n_norm}.norm.bias"


def test_the_same_source_gives_the_same_map(tmp_path: Path) -> None:
    source = PAIRS["megatron_llama"].make(tmp_path / "source")
    one, two = (msgspec.json.encode(draft_map(source, "llama").map) for _ in range(2))
    assert one == two
