"""S and C: shapes, dtypes; and config.json against what the tensors have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import (
    Draft,
    Edit,
    cast,
    config,
    draft,
    drop,
    family,
    file,
    no_config,
    reshape,
    then,
    transpose,
    unset,
)  # fmt: skip

L = "model.layers."
Q_PROJ, O_PROJ = "*.q_proj.weight", "*.o_proj.weight"
UP = "*.up_proj.weight"


def tokenizer(size: int) -> Edit:
    vocabulary = {f"t{i}": i for i in range(size)}
    return file("tokenizer.json", json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))


def vocabulary(rows: int) -> Edit:
    return reshape((rows, 8), "lm_head.weight", "model.embed_tokens.weight")


def without_layer(n: int) -> Edit:
    return drop(f"*.layers.{n}.*")


def more_layers(d: Draft) -> None:
    """Layer 1 once more as layer 2."""
    for key in d.like("*.layers.1.*"):
        d.tensors[key.replace(".1.", ".2.", 1)] = d.tensors[key]


def size(dtype_bytes: int) -> str:
    return f"{sum(int(np.prod(t.shape)) for t in draft('llama').tensors.values()) * dtype_bytes:,}"


CASES: list[Case] = [
    # -- shapes
    Fires(
        "shape-mismatch",
        "one layer's o_proj",
        family("llama", reshape((8, 9), f"{L}1.self_attn.o_proj.weight")),
        subject="decoder.self_attention",
        expected=[8, 8],
        observed=[8, 9],
        tensors=[f"{L}1.self_attn.o_proj.weight"],
        says=["layers 1"],
    ),
    Fires(
        "shape-mismatch",
        "a norm twice as long",
        family("llama", reshape((16,), "model.norm.weight")),
        subject="decoder.final_norm",
        expected=[8],
        observed=[16],
    ),
    Fires(
        "shape-mismatch",
        "one dimension too many",
        family("llama", reshape((1, 8), "model.norm.weight")),
        observed=[1, 8],
    ),
    Near("shape-mismatch", "head_dim 6 where hidden / heads is 4", family("llama_head6")),
    Fires(
        "transposed-weight",
        "up_proj of every layer",
        family("llama", transpose(UP)),
        expected=[12, 8],
        observed=[8, 12],
        tensors=2,
        says=["layers 0-1"],
    ),
    Fires(
        "transposed-weight",
        "GPT-2's Conv1D saved as a linear layer",
        family("gpt2", transpose("*.c_fc.weight")),
        expected=[8, 12],
        observed=[12, 8],
    ),
    Near("transposed-weight", "a square matrix, which no header can tell", family("llama", transpose(Q_PROJ))),
    Near("transposed-weight", "GPT-2's Conv1D as it is", family("gpt2")),
    Fires(
        "vocab-size-mismatch",
        "three numbers",
        family("llama", vocabulary(20), tokenizer(18)),
        expected=16,
        observed=20,
        says=["16", "20", "tokenizer.json has 18"],
    ),
    Fires(
        "vocab-size-mismatch",
        "tokenizer and tensors agree",
        family("llama", vocabulary(20), tokenizer(20)),
        expected=16,
        observed=20,
        says=["tokenizer.json has 20"],
    ),
    Fires(
        "vocab-size-mismatch",
        "tied, and no tokenizer",
        family("llama_tied", reshape((20, 8), "model.embed_tokens.weight")),
        expected=16,
        observed=20,
    ),
    Near("vocab-size-mismatch", "a tokenizer smaller than a padded embedding", family("llama", tokenizer(13))),
    # -- dtype
    Fires(
        "dtype-mismatch",
        "bfloat16 where config says float32",
        family("llama", cast("BF16", "*")),
        severity="warning",
        exit=0,
        expected="F32",
        observed="BF16",
        says=[size(2), size(4)],
    ),
    Fires(
        "dtype-mismatch",
        "the older spelling torch_dtype",
        family("llama", unset("dtype"), config(torch_dtype="float16")),
        severity="warning",
        exit=0,
        expected="F16",
        observed="F32",
        says=[size(2), size(4)],
    ),
    Near(
        "dtype-mismatch",
        "norms kept in float32",
        family("llama", cast("BF16", "*_proj.weight", "*embed*", "lm_head*"), config(dtype="bfloat16")),
    ),
    Near("dtype-mismatch", "no dtype declared", family("llama", cast("BF16", "*"), unset("dtype"))),
    # -- config.json itself
    Fires("config-missing", "weights alone", family("llama", no_config), severity="warning", exit=3),
    Fires("config-missing", "strict", family("llama", no_config), args=["--strict"], severity="warning", exit=1),
    Fires(
        "config-missing", "allowed", family("llama", no_config), args=["--allow-unverified"], severity="warning", exit=0
    ),
    Fires(
        "config-missing",
        "with the manifest given",
        family("llama", no_config),
        args=["--manifest", "llama"],
        severity="warning",
        exit=3,
    ),
    Near("config-missing", "there", family("llama")),
    Fires(
        "config-invalid", "not JSON", then(family("llama"), lambda f: (f / "config.json").write_text("{")), beside=None
    ),
    Fires(
        "config-invalid", "a list", then(family("llama"), lambda f: (f / "config.json").write_text("[]")), beside=None
    ),
    Fires("config-invalid", "a width in words", family("llama", config(hidden_size="8")), beside=None),
    Fires("config-invalid", "a negative count", family("llama", config(num_hidden_layers=-2)), beside=None),
    Fires(
        "config-invalid",
        "no heads at all",
        family("llama", config(num_attention_heads=0), unset("head_dim")),
        beside=None,
    ),
    Fires("config-invalid", "an epsilon in words", family("llama", config(rms_norm_eps="1e-5")), observed="1e-5"),
    Fires("config-invalid", "an endless epsilon", family("llama", config(rms_norm_eps=float("inf")))),
    Fires("config-invalid", "an epsilon past all floats", family("llama", config(rms_norm_eps=10**400))),
    Fires("config-invalid", "a negative epsilon", family("llama", config(rms_norm_eps=-1e-6)), observed=-1e-6),
    Fires("config-invalid", "a flag in words", family("gpt_neox", config(use_parallel_residual="yes")), observed="yes"),
    Near("config-invalid", "an epsilon of zero", family("llama", config(rms_norm_eps=0.0))),
    Fires(
        "config-field-unconsumed",
        "layer_norm_eps in LLaMA",
        family("llama", config(layer_norm_eps=1e-3)),
        severity="warning",
        exit=0,
        subject="config.json: layer_norm_eps",
        observed=1e-3,
    ),
    Fires(
        "config-field-unconsumed",
        "rms_norm_eps in BERT",
        family("bert", config(rms_norm_eps=1e-6)),
        severity="warning",
        exit=0,
        observed=1e-6,
    ),
    Fires(
        "config-field-unconsumed",
        "Granite's multiplier in LLaMA",
        family("llama", config(residual_multiplier=0.22)),
        severity="warning",
        exit=0,
        observed=0.22,
    ),
    Near("config-field-unconsumed", "a factor of one", family("llama", config(residual_multiplier=1.0))),
    Near("config-field-unconsumed", "a field of another tool", family("llama", config(my_run_name="x"))),
    Near("config-field-unconsumed", "every multiplier that Granite reads", family("granite")),
    # -- counts
    Fires(
        "layer-count-mismatch",
        "one declared and two stored",
        family("llama", config(num_hidden_layers=1)),
        subject="decoder.layers",
        expected=1,
        observed=2,
        says=["surplus: layers 1"],
    ),
    Fires(
        "layer-count-mismatch",
        "three declared and two stored",
        family("llama", config(num_hidden_layers=3)),
        expected=3,
        observed=2,
        says=["absent: layers 2"],
    ),
    Fires("layer-count-mismatch", "the last one lost", family("gpt_neox", without_layer(1)), expected=2, observed=1),
    Fires(
        "layer-count-mismatch",
        "the first one lost",
        family("gpt_neox", without_layer(0)),
        expected=2,
        observed=1,
        says=["absent: layers 0"],
    ),
    Fires("layer-count-mismatch", "a layer past the last", family("llama", more_layers), expected=2, observed=3),
    Fires(
        "layer-count-mismatch",
        "T5's decoder alone",
        family("t5", config(num_decoder_layers=3)),
        subject="decoder.layers",
        expected=3,
        observed=2,
    ),
    Near("layer-count-mismatch", "ALBERT stores one layer for all", family("albert", config(num_hidden_layers=12))),
    Near(
        "layer-count-mismatch",
        "a layer that lacks most, not all",
        family("llama", drop(f"{L}1.self_attn.*", f"{L}1.mlp.*")),
        exit=1,
        beside=None,
    ),
    Fires(
        "config-tensor-mismatch",
        "hidden size",
        family("llama", config(hidden_size=16)),
        subject="dims.d_model",
        expected=16,
        observed=8,
    ),
    Fires(
        "config-tensor-mismatch",
        "heads",
        family("llama", config(num_attention_heads=4)),
        subject="dims.n_heads",
        expected=4,
        observed=2,
    ),
    Fires(
        "config-tensor-mismatch",
        "kv heads, solved from k_proj [4, 8]",
        family("llama", config(num_key_value_heads=2)),
        subject="dims.n_kv",
        expected=2,
        observed=1,
    ),
    Fires(
        "config-tensor-mismatch",
        "head_dim left out, so that hidden / heads stands for it",
        family("llama_head6", unset("head_dim")),
        subject="dims.d_head",
        expected=4,
        observed=6,
    ),
    Fires(
        "config-tensor-mismatch",
        "d_ff",
        family("llama", config(intermediate_size=13)),
        subject="dims.d_ff",
        expected=13,
        observed=12,
    ),
    Fires(
        "config-tensor-mismatch",
        "experts",
        family("qwen3_moe", config(num_local_experts=3)),
        subject="dims.n_experts",
        expected=3,
        observed=4,
        beside=None,
    ),
    Fires(
        "config-tensor-mismatch",
        "expert width",
        family("qwen3_moe", config(moe_intermediate_size=7)),
        expected=7,
        observed=6,
    ),
    Near("config-tensor-mismatch", "kv heads left out where they equal heads", family("gpt_neox")),
    Near(
        "config-tensor-mismatch",
        "one layer of another width",
        family("llama", reshape((13, 8), f"{L}0.mlp.up_proj.weight")),
        exit=1,
        beside=["shape-mismatch"],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_shapes(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_a_null_epsilon_is_no_epsilon(tmp_path: Path) -> None:
    """The class that reads it raises; a default must not be put in its place."""
    outcome = inspect(family("llama", config(rms_norm_eps=None))(tmp_path))
    assert outcome.status != 0


@pytest.mark.parametrize("absent", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_a_field_left_out_is_the_class_default(absent: str, tmp_path: Path) -> None:
    outcome = inspect(family("llama", unset(absent))(tmp_path))
    assert outcome.status == 1
    assert set(outcome.grave) <= {"config-tensor-mismatch", "layer-count-mismatch", "vocab-size-mismatch"}


def test_a_repeated_fault_is_one_finding(tmp_path: Path) -> None:
    outcome = inspect(family("qwen3_moe", drop("*.experts.*.up_proj.weight"))(tmp_path))
    (finding,) = outcome.findings
    assert "layers 0-1" in finding["message"]
    assert "experts 0-3" in finding["message"]
    assert len(finding["tensors"]) == 8
