"""N: norms that are missing, unexpected, of another kind, or that changed since they were pinned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import (
    Draft,
    add,
    config,
    copy,
    draft,
    drop,
    encoded,
    family,
    fill,
    no_config,
    put,
    reshape,
    shift,
)  # fmt: skip
from tests.support.manifests import PINNED, against, now, repinned

L = "model.layers."
IN, POST, FINAL = "*.input_layernorm.weight", "*.post_attention_layernorm.weight", "model.norm.weight"


def biases(*norms: str) -> Any:
    """A zero bias beside every norm that matches."""

    def edit(d: Draft) -> None:
        for key in d.like(*norms):
            put(key[:-6] + "bias", [0.0] * d.tensors[key].shape[0])(d)

    return edit


def pinned_norm(field: str, value: Any, pinned: Any) -> Any:
    return against("llama", {f"norm.{field}": now(value, pinned)})


def one_offset(rows: str = "*") -> Any:
    """Norm gains about zero, as a 1 + weight family has them."""
    return shift(-1.0, rows + "layernorm.weight", FINAL)


def zeroed_counter(d: Draft) -> None:
    _counters(0)(d)


def _counters(value: int) -> Any:
    def edit(d: Draft) -> None:
        put("model.norm.running_mean", [0.0] * 8)(d)
        put("model.norm.running_var", [1.0] * 8)(d)
        put("model.norm.bias", [0.01 * i for i in range(8)])(d)
        d.tensors["model.norm.num_batches_tracked"] = encoded(_scalar(value), "I64")

    return edit


def _scalar(value: int) -> Any:
    import numpy as np

    return np.array(value)


BATCHNORM = {
    "stacks.0.final_norm": {
        "module": "model.norm", "family": "batchnorm", "bias": True, "couples": ["examples", "positions"],
        "padding_policy": "exclude padding", "persistent_state": ["running_mean", "running_var", "num_batches_tracked"],
    }
}  # fmt: skip
COUPLED = {"stacks.0.final_norm": {"module": "model.norm", "couples": ["examples", "positions"]}}
EXCLUDED = {"stacks.0.final_norm": {**COUPLED["stacks.0.final_norm"], "padding_policy": "exclude padding"}}

CASES: list[Case] = [
    # -- family and formula, pinned
    Fires(
        "norm-family-mismatch",
        "RMSNorm now, LayerNorm when pinned",
        pinned_norm("family", "rmsnorm", "layernorm"),
        PINNED,
        expected="layernorm",
        observed="rmsnorm",
    ),
    Near("norm-family-mismatch", "the same as pinned", pinned_norm("family", "rmsnorm", "rmsnorm"), PINNED),
    Fires(
        "norm-work-dtype-mismatch",
        "moments in bfloat16 now",
        pinned_norm("work_dtype", "bfloat16", "float32"),
        PINNED,
        expected="float32",
        observed="bfloat16",
    ),
    Near("norm-work-dtype-mismatch", "the same as pinned", pinned_norm("work_dtype", "float32", "float32"), PINNED),
    Fires(
        "norm-formula-mismatch",
        "another number of groups now",
        pinned_norm("groups", 4, 2),
        PINNED,
        expected=2,
        observed=4,
    ),
    Near("norm-formula-mismatch", "the same as pinned", pinned_norm("groups", 2, 2), PINNED),
    # -- epsilon
    Fires(
        "epsilon-mismatch",
        "1e-6 when pinned, 1e-5 now",
        repinned("llama", config(rms_norm_eps=1e-5)),
        PINNED,
        subject="decoder.self_attention.norm_in",
        expected=1e-6,
        observed=1e-5,
        says=["decoder.mlp.norm_in", "decoder.final_norm", "rms_norm_eps"],
    ),
    Fires(
        "epsilon-mismatch",
        "BERT's 1e-12 against the usual 1e-5",
        repinned("bert", config(layer_norm_eps=1e-5)),
        PINNED,
        expected=1e-12,
        observed=1e-5,
    ),
    Fires(
        "epsilon-mismatch",
        "GPT-NeoX's spelling of it",
        repinned("gpt_neox", config(layer_norm_eps=1e-6)),
        PINNED,
        expected=1e-5,
        observed=1e-6,
    ),
    Fires(
        "epsilon-mismatch",
        "DeepSeek's inner norms do not follow the config",
        repinned("deepseek_v3", config(rms_norm_eps=1e-5)),
        PINNED,
        expected=1e-6,
        observed=1e-5,
    ),
    Near("epsilon-mismatch", "1e-6 written 0.000001", repinned("llama", config(rms_norm_eps=0.000001)), PINNED),
    Near(
        "epsilon-mismatch",
        "no config any more: unknown, not equal",
        repinned("llama", no_config),
        PINNED,
        exit=3,
        beside=["config-missing"],
    ),
    # -- presence
    Fires(
        "norm-missing",
        "one layer's input norm",
        family("llama", drop(f"{L}1.input_layernorm.weight")),
        subject="decoder.self_attention.norm_in",
        tensors=[f"{L}1.input_layernorm.weight"],
        says=["layers 1"],
    ),
    Fires(
        "norm-missing",
        "two of Gemma 2's four norms",
        family("gemma2", drop("*_feedforward_layernorm.weight")),
        times=2,
        subject="decoder.mlp.norm_in",
        tensors=2,
    ),
    Fires(
        "norm-missing",
        "the bias goes with its weight",
        family("bert", drop("*.attention.output.LayerNorm.*")),
        tensors=2,
    ),
    Fires("norm-missing", "BERT's embedding norm", family("bert", drop("bert.embeddings.LayerNorm.*"))),
    Near("norm-missing", "Cohere has one norm for both branches", family("cohere")),
    Near("norm-missing", "StableLM in parallel has one", family("stablelm_parallel")),
    Fires(
        "norm-unexpected",
        "a two-norm table against four stored norms",
        family(
            "llama",
            add(
                (8,),
                "model.layers.{0-1}.pre_feedforward_layernorm.weight",
                "model.layers.{0-1}.post_feedforward_layernorm.weight",
            ),
        ),
        times=2,
    ),
    Fires(
        "norm-unexpected",
        "an MLP norm beside a shared one",
        family("cohere", add((8,), "model.layers.{0-1}.post_attention_layernorm.weight")),
        observed=[8],
        tensors=2,
    ),
    Near("norm-unexpected", "four norms in Gemma 2", family("gemma2")),
    Near(
        "norm-unexpected",
        "a matrix whose name has norm in it",
        family("llama", add((8, 8), "model.layers.{0-1}.normaliser.weight")),
        exit=1,
        beside=["unexpected-key"],
    ),
    Fires(
        "norm-bias-missing",
        "BERT's output norms",
        family("bert", drop("*.layer.*.output.LayerNorm.bias")),
        beside=None,
        times=2,
    ),
    Fires(
        "norm-bias-missing",
        "one layer of GPT-2",
        family("gpt2", drop("transformer.h.0.ln_2.bias")),
        subject="decoder.mlp.norm_in",
        tensors=["transformer.h.0.ln_2.bias"],
    ),
    Near("norm-bias-missing", "LayerNorm without a bias", family("cohere")),
    Near(
        "norm-bias-missing",
        "OPT without affine norms",
        family("opt", drop("*layer_norm*"), config(layer_norm_elementwise_affine=False)),
    ),
    Fires(
        "norm-bias-unexpected",
        "zeros beside every RMSNorm of OLMo 2",
        family("olmo2", biases("*layernorm.weight")),
        times=2,
    ),
    Fires(
        "norm-bias-unexpected",
        "beside the final norm alone",
        family("llama", biases(FINAL)),
        subject="decoder.final_norm",
        tensors=["model.norm.bias"],
        observed=[8],
    ),
    Near("norm-bias-unexpected", "LayerNorm with a bias", family("gpt_neox")),
    Fires("final-norm-missing", "LLaMA", family("llama", drop(FINAL)), subject="decoder.final_norm", tensors=[FINAL]),
    Fires(
        "final-norm-missing", "OPT, as a converter left it out", family("opt", drop("model.decoder.final_layer_norm.*"))
    ),
    Fires(
        "final-norm-missing",
        "T5's encoder alone",
        family("t5", drop("encoder.final_layer_norm.weight")),
        subject="encoder.final_norm",
    ),
    Near("final-norm-missing", "OPT in its Post-LN size has none, rightly", family("opt_post_ln")),
    Near("final-norm-missing", "BERT has none", family("bert")),
    Fires(
        "final-norm-unexpected",
        "OPT in its Post-LN size, with one invented",
        family(
            "opt_post_ln", add((8,), "model.decoder.final_layer_norm.weight", "model.decoder.final_layer_norm.bias")
        ),
        beside=None,
        times=2,
    ),
    Near("final-norm-unexpected", "OPT in its Pre-LN sizes", family("opt")),
    # -- q/k
    Fires(
        "qk-norm-mismatch",
        "q norms lost in a merge",
        family("qwen3", drop("*.q_norm.weight")),
        tensors=2,
        says=["layers 0-1"],
    ),
    Fires(
        "qk-norm-mismatch",
        "q/k norms that LLaMA does not run",
        family(
            "llama",
            add((4,), "model.layers.{0-1}.self_attn.q_norm.weight", "model.layers.{0-1}.self_attn.k_norm.weight"),
        ),
        times=2,
        observed=[4],
    ),
    Fires(
        "qk-norm-mismatch",
        "Cohere's, which its config does not declare",
        family("cohere_qk", config(use_qk_norm=False)),
        times=2,
    ),
    Near("qk-norm-mismatch", "per head", family("qwen3")),
    Near("qk-norm-mismatch", "over the full width", family("olmo2")),
    Near("qk-norm-mismatch", "one row per head", family("cohere_qk")),
    Fires(
        "norm-axes-mismatch",
        "OLMo 2's q norm per head",
        family("olmo2", reshape((4,), "*.q_norm.weight")),
        expected=[8],
        observed=[4],
        tensors=2,
    ),
    Fires(
        "norm-axes-mismatch",
        "Qwen 3's q norm over the full width",
        family("qwen3", reshape((8,), "*.q_norm.weight")),
        expected=[4],
        observed=[8],
    ),
    Fires(
        "norm-axes-mismatch",
        "one gain for all channels when pinned",
        pinned_norm("scale", "per_channel", "scalar"),
        PINNED,
        expected="scalar",
        observed="per_channel",
    ),
    Near("norm-axes-mismatch", "k norm as wide as its one head", family("olmo2")),
    # -- offset and training
    Fires(
        "scale-offset-mismatch",
        "every gain of a LLaMA about zero",
        family("llama", one_offset()),
        severity="warning",
        exit=0,
        expected=0,
        observed=1,
    ),
    Fires(
        "scale-offset-mismatch",
        "every gain of a Gemma 2 about one",
        family("gemma2", shift(1.0, "*norm.weight")),
        severity="warning",
        exit=0,
        expected=1,
        observed=0,
    ),
    Fires(
        "scale-offset-mismatch",
        "strict",
        family("gemma2", shift(1.0, "*norm.weight")),
        args=["--strict"],
        severity="warning",
        exit=1,
    ),
    Near("scale-offset-mismatch", "one norm of five about zero", family("llama", shift(-1.0, FINAL))),
    Near("scale-offset-mismatch", "Gemma 2 about zero", family("gemma2")),
    Fires(
        "norm-shared",
        "MLP norm equal to the attention norm, in every layer",
        family(
            "llama",
            copy(f"{L}0.input_layernorm.weight", f"{L}0.post_attention_layernorm.weight"),
            copy(f"{L}1.input_layernorm.weight", f"{L}1.post_attention_layernorm.weight"),
        ),
        says=["2 places"],
        tensors=4,
    ),
    Near(
        "norm-shared",
        "one site equal in two layers",
        family("llama", copy(f"{L}0.input_layernorm.weight", f"{L}1.input_layernorm.weight")),
    ),
    Near("norm-shared", "untrained: all ones", family("llama", fill(1.0, IN, POST, FINAL))),
    Fires(
        "norm-untrained",
        "every gain is one",
        family("llama", fill(1.0, IN, POST, FINAL)),
        severity="note",
        exit=0,
        observed=1.0,
    ),
    Fires(
        "norm-untrained",
        "every gain of a 1 + weight family is zero",
        family("gemma2", fill(0.0, "*norm.weight")),
        severity="note",
        exit=0,
        observed=0.0,
    ),
    Fires(
        "norm-untrained",
        "q norms lost in a merge and filled in",
        family("qwen3", fill(1.0, "*q_norm.weight")),
        severity="note",
        exit=0,
        observed=1.0,
        says=["2 of 9"],
    ),
    Fires(
        "norm-untrained",
        "a gain that lets nothing through",
        family("llama", fill(0.0, "model.layers.1.input_layernorm.weight")),
        severity="note",
        exit=0,
        observed=0.0,
        says=["1 of 5"],
    ),
    Near("norm-untrained", "constant at another value", family("llama", fill(0.9, IN, POST))),
    # -- coupling
    Fires(
        "padding-policy-missing",
        "a norm over positions that does not say what padding does",
        against("llama", COUPLED),
        PINNED,
        subject="decoder.final_norm",
        expected="padding_policy",
        observed=None,
    ),
    Near("padding-policy-missing", "the same with a policy", against("llama", EXCLUDED), PINNED),
    Fires(
        "calibration-stale",
        "running statistics that were never updated",
        against("llama", BATCHNORM, zeroed_counter),
        PINNED,
        subject="decoder.final_norm",
        observed=0,
    ),
    Near("calibration-stale", "after one batch", against("llama", BATCHNORM, _counters(1)), PINNED),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_norms(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_a_name_is_no_evidence_of_placement(tmp_path: Path) -> None:
    """`post_attention_layernorm` is the MLP's input norm in LLaMA and an output norm in OLMo 2."""
    placed: dict[str, set[str]] = {}
    for name in ("llama", "olmo2"):
        report = inspect(family(name)(tmp_path / name)).report
        assert report is not None
        placed[name] = {r["declared"] for r in report["contract"] if r["field"].endswith("mlp.norm_in.placement")}
        placed[name] |= {r["declared"] for r in report["contract"] if r["field"].endswith("mlp.norm_out.placement")}
    assert placed == {"llama": {"pre_branch"}, "olmo2": {"post_branch"}}


def test_all_norms_of_a_gemma_keep_their_place(tmp_path: Path) -> None:
    """Four stored, four consumed: none is read twice, none is left."""
    report = inspect(family("gemma2")(tmp_path)).report
    assert report is not None
    present = [r["field"] for r in report["contract"] if r["field"].endswith(".present") and ".norm_" in r["field"]]
    assert sorted(present) == sorted(
        f"decoder.{branch}.{site}.present" for branch in ("self_attention", "mlp") for site in ("norm_in", "norm_out")
    )
    assert len(draft("gemma2").like("*.layers.0.*norm.weight")) == 4
