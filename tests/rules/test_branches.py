"""T: biases, branches, and everything of the block equation that changed since it was pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import add, config, drop, family
from tests.support.manifests import PINNED, against, now, repinned

L = "model.layers."
MLP = "stacks.0.branches.1"
CROSS = "model.layers.{0-1}.crossattention.self.query.weight"

CASES: list[Case] = [
    # -- biases
    Fires(
        "branch-bias-missing",
        "Qwen 2 without its q biases",
        family("qwen2", drop("*.q_proj.bias")),
        tensors=[f"{L}0.self_attn.q_proj.bias", f"{L}1.self_attn.q_proj.bias"],
        says=["layers 0-1"],
    ),
    Fires(
        "branch-bias-missing",
        "Qwen 2 without all three",
        family("qwen2", drop("*.q_proj.bias", "*.k_proj.bias", "*.v_proj.bias")),
        times=3,
    ),
    Fires(
        "branch-bias-missing", "declared by a config flag", family("llama", config(mlp_bias=True)), times=3, tensors=2
    ),
    Near("branch-bias-missing", "Qwen 2: biases on q, k, v and not on o", family("qwen2")),
    Near("branch-bias-missing", "declared and there", family("llama_bias")),
    Fires(
        "branch-bias-unexpected",
        "Qwen 2 with one on o",
        family("qwen2", add((8,), "model.layers.{0-1}.self_attn.o_proj.bias")),
        observed=[8],
        tensors=2,
    ),
    Fires(
        "branch-bias-unexpected", "there, and the flag is off", family("llama_bias", config(mlp_bias=False)), times=3
    ),
    Near("branch-bias-unexpected", "there, and the flag is on", family("llama_bias")),
    # -- branches
    Fires(
        "branch-count-mismatch",
        "cross-attention in a decoder-only stack",
        family("llama", add((8, 8), CROSS)),
        tensors=2,
        beside=["unexpected-key"],
    ),
    Near("branch-count-mismatch", "T5's decoder has one", family("t5")),
    # -- state of one pass
    Fires(
        "transient-state-persisted",
        "RealFormer's scores of the layer before",
        family("llama", add((2, 2, 8, 8), "model.layers.{0-1}.self_attn.prev_scores")),
        tensors=2,
    ),
    Fires(
        "transient-state-persisted",
        "keys and values of a request",
        family(
            "llama", add((1, 2, 8, 4), "model.layers.{0-1}.self_attn.k_cache", "model.layers.{0-1}.self_attn.v_cache")
        ),
        times=2,
    ),
    Fires("transient-state-persisted", "a generator", family("bert", add((16,), "bert.encoder.cuda_rng_state"))),
    Near(
        "transient-state-persisted",
        "a projection whose name speaks of scores",
        family("llama", add((8, 8), "model.layers.{0-1}.self_attn.scores_proj.weight")),
        exit=1,
        beside=["unexpected-key"],
    ),
    # -- placement and order
    Fires(
        "placement-mismatch",
        "Pre-LN now, Post-LN when pinned",
        against("llama", {f"{MLP}.norms.norm_in.placement": now("pre_branch", "post_add")}),
        PINNED,
        subject="decoder.mlp.norm_in",
        expected="post_add",
        observed="pre_branch",
    ),
    Fires(
        "placement-mismatch",
        "OPT, Post-LN now: the same keys in every layer",
        repinned("opt", config(do_layer_norm_before=False)),
        PINNED,
        beside=["final-norm-missing"],
        times=2,
    ),
    Near(
        "placement-mismatch",
        "the same as pinned",
        against("llama", {f"{MLP}.norms.norm_in.placement": now("pre_branch", "pre_branch")}),
        PINNED,
    ),
    Fires(
        "parallel-sequential-mismatch",
        "GPT-NeoX, sequential now",
        repinned("gpt_neox", config(use_parallel_residual=False)),
        PINNED,
        subject="decoder",
        expected=True,
        observed=False,
    ),
    Fires(
        "parallel-sequential-mismatch",
        "Falcon, sequential now",
        repinned("falcon", config(parallel_attn=False)),
        PINNED,
        expected=True,
        observed=False,
        beside=None,
    ),
    Near(
        "parallel-sequential-mismatch",
        "GPT-NeoX whose flag is left out: absent means true",
        repinned("gpt_neox", lambda d: d.config.pop("use_parallel_residual")),
        PINNED,
    ),
    Fires(
        "branch-input-mismatch",
        "the MLP reads the attention's norm now",
        against("llama", {f"{MLP}.reads": now("self_attention.norm_in", "state")}),
        PINNED,
        subject="decoder.mlp",
        expected="state",
        observed="self_attention.norm_in",
    ),
    Near(
        "branch-input-mismatch", "the same as pinned", against("llama", {f"{MLP}.reads": now("state", "state")}), PINNED
    ),
    # -- factors
    Fires(
        "branch-scale-mismatch",
        "Granite's residual multiplier dropped",
        repinned("granite", config(residual_multiplier=1.0)),
        PINNED,
        subject="decoder.residual",
        expected=0.22,
        observed=1.0,
        times=2,
    ),
    Near(
        "branch-scale-mismatch",
        "Granite's residual multiplier written 2.2e-1",
        repinned("granite", config(residual_multiplier=2.2e-1)),
        PINNED,
    ),
    Fires(
        "residual-scale-mismatch",
        "DeepNorm's alpha for another depth",
        against("llama", {"residual.shortcut_scale": now(1.5, 1.6818)}),
        PINNED,
        subject="decoder.residual",
        expected=1.6818,
        observed=1.5,
    ),
    Near("residual-scale-mismatch", "1 and 1.0", against("llama", {"residual.shortcut_scale": now(1, 1.0)}), PINNED),
    Fires(
        "residual-source-mismatch",
        "BLOOM's shortcut after the norm now",
        repinned("bloom", config(apply_residual_connection_post_layernorm=True)),
        PINNED,
        expected="state",
        observed="normalised_state",
    ),
    Near(
        "residual-source-mismatch",
        "BLOOM's flag left out",
        repinned("bloom", lambda d: d.config.pop("apply_residual_connection_post_layernorm")),
        PINNED,
    ),
    Fires(
        "embedding-scale-mismatch",
        "Granite's embedding multiplier dropped",
        repinned("granite", config(embedding_multiplier=1.0)),
        PINNED,
        subject="decoder.embedding",
        expected=12.0,
        observed=1.0,
    ),
    Fires(
        "embedding-scale-mismatch",
        "left out",
        repinned("granite", lambda d: d.config.pop("embedding_multiplier")),
        PINNED,
        expected=12.0,
        observed=1.0,
    ),
    Near("embedding-scale-mismatch", "12 and 12.0", repinned("granite", config(embedding_multiplier=12)), PINNED),
    Fires(
        "logit-scale-mismatch",
        "Granite divides by 8, which is a factor of 1/8",
        repinned("granite", config(logits_scaling=1.0)),
        PINNED,
        subject="logits",
        expected=0.125,
        observed=1.0,
    ),
    Fires(
        "logit-scale-mismatch",
        "Cohere's logit scale inverted",
        repinned("cohere", config(logit_scale=16.0)),
        PINNED,
        expected=0.0625,
        observed=16.0,
    ),
    Fires(
        "logit-scale-mismatch",
        "Gemma 2's other cap on attention",
        repinned("gemma2", config(attn_logit_softcapping=20.0)),
        PINNED,
        subject="decoder.self_attention",
        expected=50.0,
        observed=20.0,
    ),
    Fires(
        "logit-scale-mismatch",
        "Gemma 2's other cap on logits",
        repinned("gemma2", config(final_logit_softcapping=20.0)),
        PINNED,
        subject="logits",
        expected=30.0,
        observed=20.0,
    ),
    Near(
        "logit-scale-mismatch",
        "Gemma 2's cap left out, which is its default",
        repinned("gemma2", lambda d: d.config.pop("final_logit_softcapping")),
        PINNED,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_branches(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_every_multiplier_of_granite_is_read_once(tmp_path: Path) -> None:
    """Residual, embedding and logits, each with its direction; none of them is left unread."""
    report = inspect(family("granite")(tmp_path)).report
    assert report is not None
    stored = {r["field"]: r["stored"] for r in report["contract"]}
    assert stored["decoder.embedding.scale"] == 12.0
    assert stored["decoder.residual.attention_branch_scale"] == stored["decoder.residual.mlp_branch_scale"] == 0.22
    assert stored["logits.scale"] == 0.125


@pytest.mark.parametrize(
    ("name", "edit"),
    [("gemma2", "final_logit_softcapping"), ("gemma2", "attn_logit_softcapping")],
)
def test_a_null_cap_is_no_cap(name: str, edit: str, tmp_path: Path) -> None:
    """transformers takes null at its word: no cap, the same greedy tokens and other probabilities."""
    check(
        Fires("logit-scale-mismatch", "null", repinned(name, config(**{edit: None})), PINNED, observed=None), tmp_path
    )


def test_opt_pinned_with_a_final_norm_that_the_config_now_removes(tmp_path: Path) -> None:
    outcome = inspect(
        repinned("opt", config(_remove_final_layer_norm=True))(tmp_path / "ckpt"),
        "--manifest", str(tmp_path / "pinned.json"),
    )  # fmt: skip
    assert outcome.status == 1
