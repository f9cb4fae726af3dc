"""A release whose config.json changed since its manifest was pinned: its tensors have to fit both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.audit import inspect
from tests.support.checkpoint import Edit, config, copy
from tests.support.manifests import repinned

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
# What was pinned, what changed, and a rule that has to say so.
CHANGED: list[tuple[str, Edit, str]] = [
    ("llama", config(num_hidden_layers=1), "layer-count-mismatch"),
    ("llama", config(num_hidden_layers=3), "layer-count-mismatch"),
    ("llama", config(hidden_size=16), "config-tensor-mismatch"),
    ("llama", config(num_key_value_heads=2), "config-tensor-mismatch"),
    ("llama", config(intermediate_size=13), "config-tensor-mismatch"),
    ("llama", config(vocab_size=20), "vocab-size-mismatch"),
    ("llama", config(tie_word_embeddings=True), "tied-weights-mismatch"),
    ("llama_tied", config(tie_word_embeddings=False), "alias-missing"),
    ("llama_bias", config(mlp_bias=False), "branch-bias-unexpected"),
    ("llama", config(attention_bias=True), "branch-bias-missing"),
    ("cohere_qk", config(use_qk_norm=False), "qk-norm-mismatch"),
    ("cohere", config(use_qk_norm=True), "qk-norm-mismatch"),
    ("opt", config(do_layer_norm_before=False), "placement-mismatch"),
    ("opt", config(_remove_final_layer_norm=True), "final-norm-unexpected"),
    ("qwen3_moe", config(num_local_experts=3), "config-tensor-mismatch"),
]


def _audit(name: str, edit: Edit, folder: Path) -> tuple[int, list[str]]:
    outcome = inspect(repinned(name, edit)(folder / "ckpt"), "--manifest", str(folder / "pinned.json"))
    return outcome.status, outcome.grave


@pytest.mark.parametrize(("name", "edit", "rule"), CHANGED, ids=[f"{n}-{r}-{i}" for i, (n, _, r) in enumerate(CHANGED)])
def test_a_config_that_its_tensors_no_longer_fit(name: str, edit: Edit, rule: str, tmp_path: Path) -> None:
    status, grave = _audit(name, edit, tmp_path)
    assert status == 1
    assert rule in grave or {"final-norm-missing"} == {rule.replace("unexpected", "missing")} & {*grave}, grave


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("llama", config(attention_dropout=0.1)),
        ("llama", config(use_cache=False, transformers_version="4.40.0")),
        ("llama_tied", copy(EMBED, HEAD)),
        ("gpt_neox", lambda d: d.config.pop("tie_word_embeddings")),
    ],
    ids=["dropout", "nothing of the block", "an equal head stored", "a default left out"],
)
def test_what_changes_no_function_is_accepted(name: str, edit: Edit, tmp_path: Path) -> None:
    assert _audit(name, edit, tmp_path) == (0, [])


@pytest.mark.parametrize("name", ["llama", "gemma2", "opt", "t5", "deepseek_v3", "bert", "falcon", "granite"])
def test_the_release_that_was_pinned_is_accepted(name: str, tmp_path: Path) -> None:
    assert _audit(name, lambda d: None, tmp_path) == (0, [])
