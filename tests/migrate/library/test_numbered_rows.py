"""Fused projections whose rows are numbered from 0: where each row lands, worked out by hand.

Four query heads of 2 rows, so that a head is a pair of neighbours.
"""

from __future__ import annotations

from pathlib import Path

import torch

from blockaudit.migrate import ops
from blockaudit.records.migration import Row
from blockaudit.records.operations import Split
from tests.migrate.library.layouts import gguf_llama, megatron_gpt, megatron_llama
from tests.migrate.library.layouts.sizes import Sizes
from tests.migrate.library.proving import Weights, saved, stored, there
from tests.migrate.library.test_megatron import ranked

# Heads 4, key/value heads 2, a head of 2 rows: 16 rows of q, k and v.
GROUPED = Sizes(d_model=8, n_layers=1, n_heads=4, n_kv=2, d_ff=6, vocab=10)
# Megatron: [q0 q1 k0 v0, q2 q3 k1 v1], two rows each.
Q, K, V = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]
AT = "decoder.layers.0."


def numbered(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape, every element the number of its row."""
    rows = torch.arange(float(len(tensor)))
    return (rows[:, None] if tensor.ndim == 2 else rows).expand_as(tensor).clone()


def rows(folder: Path, key: str) -> list[int]:
    return stored(folder)[key][:, 0].int().tolist()


def _megatron() -> Weights:
    weights = megatron_llama.weights(GROUPED, 0)
    fused = [f"{AT}self_attention.linear_qkv.weight", f"{AT}mlp.linear_fc1.weight"]
    return weights | {key: numbered(weights[key]) for key in fused}


def test_qkv_by_group(tmp_path: Path) -> None:
    source = saved(_megatron(), megatron_llama.config(GROUPED), tmp_path / "source")
    target = there("megatron_llama", source, tmp_path / "target")
    layer = "model.layers.0."
    assert rows(target, f"{layer}self_attn.q_proj.weight") == Q
    assert rows(target, f"{layer}self_attn.k_proj.weight") == K
    assert rows(target, f"{layer}self_attn.v_proj.weight") == V
    assert rows(target, f"{layer}mlp.gate_proj.weight") == [0, 1, 2, 3, 4, 5]
    assert rows(target, f"{layer}mlp.up_proj.weight") == [6, 7, 8, 9, 10, 11]


def test_qkv_by_group_on_two_ranks(tmp_path: Path) -> None:
    # Rank 0 holds rows 0 to 7, which is the first group whole, and [g0 g1 g2; u0 u1 u2] of gate and up.
    shards = megatron_llama.sharded(_megatron(), 2)
    assert shards[0][f"{AT}self_attention.linear_qkv.weight"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert shards[1][f"{AT}mlp.linear_fc1.weight"][:, 0].tolist() == [3, 4, 5, 9, 10, 11]
    target = there(
        "megatron_llama_tp", ranked(shards, megatron_llama.config(GROUPED), tmp_path / "source"), tmp_path / "target"
    )
    layer = "model.layers.0."
    assert [rows(target, f"{layer}self_attn.{name}_proj.weight") for name in "qkv"] == [Q, K, V]
    assert rows(target, f"{layer}mlp.gate_proj.weight") == [0, 1, 2, 3, 4, 5]
    assert rows(target, f"{layer}mlp.up_proj.weight") == [6, 7, 8, 9, 10, 11]


def test_qkv_by_head(tmp_path: Path) -> None:
    """Megatron's GPT: [q0 k0 v0, q1 k1 v1, ...] becomes the columns of c_attn, all q, all k, all v."""
    weights, key = megatron_gpt.weights(GROUPED, 0), f"{AT}self_attention.linear_qkv"
    weights |= {f"{key}.{name}": numbered(weights[f"{key}.{name}"]) for name in ("weight", "bias")}
    source = saved(weights, megatron_gpt.config(GROUPED), tmp_path / "source")
    found = stored(there("megatron_gpt", source, tmp_path / "target"))
    wanted = [0, 1, 6, 7, 12, 13, 18, 19, 2, 3, 8, 9, 14, 15, 20, 21, 4, 5, 10, 11, 16, 17, 22, 23]
    assert found["transformer.h.0.attn.c_attn.weight"][0].int().tolist() == wanted
    assert found["transformer.h.0.attn.c_attn.bias"].int().tolist() == wanted


def test_qkv_of_neox() -> None:
    """GPT-NeoX on both sides: three heads, each its q, its k, its v."""
    op = Split(layout="per_head", heads=3)
    (row,) = ops.apply([op], (Row((), (torch.arange(18),)),))
    q, k, v = (part.tolist() for part in row.values)
    assert q == [0, 1, 6, 7, 12, 13]
    assert k == [2, 3, 8, 9, 14, 15]
    assert v == [4, 5, 10, 11, 16, 17]


def test_rows_of_gguf(tmp_path: Path) -> None:
    """Heads of 8 rows: file rows 2 i and 2 i + 1 are the pair that transformers keeps at i and i + 4."""
    sizes = Sizes(d_model=16, n_layers=1, n_heads=2, n_kv=1, d_ff=6, vocab=10)
    weights = gguf_llama.weights(sizes, 0)
    weights |= {key: numbered(weights[key]) for key in ("blk.0.attn_q.weight", "blk.0.attn_k.weight")}
    source = gguf_llama.save(weights, gguf_llama.config(sizes), tmp_path / "source")
    target = there("gguf_llama", source, tmp_path / "target")
    assert rows(target, "model.layers.0.self_attn.q_proj.weight") == [
        0, 2, 4, 6, 1, 3, 5, 7,
        8, 10, 12, 14, 9, 11, 13, 15,
    ]  # fmt: skip
    assert rows(target, "model.layers.0.self_attn.k_proj.weight") == [0, 2, 4, 6, 1, 3, 5, 7]
