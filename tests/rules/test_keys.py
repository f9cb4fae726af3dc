"""K: missing, unexpected, renamed, tied; and the key sets that are no model checkpoint."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import (
    Build,
    Draft,
    Edit,
    add,
    config,
    copy,
    draft,
    drop,
    family,
    file,
    no_config,
    put,
    rename,
    reshape,
    then,
    unset,
)  # fmt: skip

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
Q = "model.layers.{}.self_attn.q_proj.weight"
EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"


def wrapped(name: str, where: str, prefix: str) -> Build:
    return family(name, rename(where, prefix))


def flat(d: Draft) -> None:
    """What FSDP saves of a model with flat parameters."""
    size = sum(int(np.prod(t.shape)) for t in d.tensors.values())
    d.tensors.clear()
    put("_fsdp_wrapped_module._flat_param", np.linspace(-1, 1, size))(d)


def zero3(d: Draft) -> None:
    """What a ZeRO-3 rank leaves behind: names without numbers."""
    for key in d.tensors:
        put(key, np.zeros((0,)))(d)


def adapter(d: Draft) -> None:
    d.tensors.clear()
    add((2, 8), "base_model.model.model.layers.{0-1}.self_attn.q_proj.lora_A.weight")(d)
    add((8, 2), "base_model.model.model.layers.{0-1}.self_attn.q_proj.lora_B.weight")(d)
    d.config = None
    file("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "x"}')(d)


def other_head(d: Draft) -> None:
    d.tensors[HEAD] = draft("llama").tensors[HEAD]


def as_adapter_file(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


CASES: list[Case] = [
    # -- missing, unexpected
    Fires(
        "missing-key",
        "q_proj of one layer",
        family("llama", drop(Q.format(1))),
        subject="decoder.self_attention",
        expected=[8, 8],
        tensors=[Q.format(1)],
        says=["1 of 2 missing", "layers 1"],
    ),
    Fires(
        "missing-key",
        "one expert matrix",
        family("qwen3_moe", drop(EXPERT)),
        tensors=[EXPERT],
        says=["layers 1", "experts 2"],
    ),
    Fires("missing-key", "the embedding", family("llama", drop(EMBED)), tensors=[EMBED]),
    Fires(
        "missing-key",
        "a key misspelt: the nearest unexpected one is named",
        family("llama", rename(r"layers\.1\.mlp\.up_proj", "layers.1.mlp.up_projj")),
        says=["up_projj"],
        beside=["unexpected-key"],
    ),
    Near("missing-key", "a tied head", family("llama_tied")),
    Near(
        "missing-key",
        "inner biases that no config declares",
        family("llama", config(attention_bias=False, mlp_bias=False)),
    ),
    Fires(
        "unexpected-key",
        "a matrix in one layer",
        family("llama", add((8, 8), "model.layers.0.self_attn.r_proj.weight")),
        observed=[8, 8],
        tensors=["model.layers.0.self_attn.r_proj.weight"],
    ),
    Fires("unexpected-key", "outside the layers", family("llama", add((8, 8), "value_head.weight"))),
    Fires(
        "unexpected-key",
        "an expert too many in one layer",
        family("qwen3_moe", add((6, 8), "model.layers.0.mlp.experts.4.up_proj.weight")),
        tensors=["model.layers.0.mlp.experts.4.up_proj.weight"],
    ),
    Fires(
        "unexpected-key",
        "a derived buffer is a note",
        family("llama", put("model.layers.0.self_attn.rotary_emb.inv_freq", [1.0, 0.01])),
        severity="note",
        exit=0,
    ),
    Fires(
        "unexpected-key",
        "GPT-2's masks are a note",
        family(
            "gpt2",
            add((1, 1, 32, 32), "transformer.h.{0-1}.attn.bias"),
            add((), "transformer.h.{0-1}.attn.masked_bias"),
        ),
        severity="note",
        exit=0,
        times=2,
    ),
    Fires(
        "unexpected-key",
        "a pooler that the masked class ignores is a note",
        family("bert", add((8, 8), "bert.pooler.dense.weight"), add((8,), "bert.pooler.dense.bias")),
        severity="note",
        exit=0,
    ),
    Near("unexpected-key", "the head of the class", family("llama")),
    Fires(
        "unexpected-key",
        "TransformerEngine's extra state is a note",
        family("llama", add((3,), "model.layers.{0-1}.self_attn._extra_state", dtype="U8")),
        severity="note",
        exit=0,
        tensors=2,
    ),
    # -- nothing fits
    Fires(
        "nothing-loaded",
        "another program's names",
        family("llama", rename(r"^(.*)$", r"encoder_\1_x")),
        says=["none of 21"],
    ),
    Near(
        "nothing-loaded",
        "one key fits",
        family("llama", drop("*layers*", "model.norm.weight", HEAD)),
        exit=1,
        beside=None,
    ),
    # -- root
    Fires(
        "prefix-mismatch",
        "language_model. in front",
        wrapped("llama", "^", "language_model."),
        expected="",
        observed="language_model.",
    ),
    Fires(
        "prefix-mismatch",
        "root renamed",
        wrapped("llama", r"^model\.", "backbone."),
        expected="model.",
        observed="backbone.",
    ),
    Fires(
        "prefix-mismatch",
        "root lost, which the class loads",
        wrapped("llama", r"^model\.", ""),
        severity="warning",
        exit=0,
        expected="model.",
        observed="",
    ),
    Fires(
        "prefix-mismatch",
        "root twice, which the class loads",
        wrapped("llama", r"^model\.", "model.model."),
        severity="warning",
        exit=0,
        expected="",
        observed="model.",
    ),
    Fires(
        "prefix-mismatch",
        "root of the head's class, which the base class strips",
        family("llama", config(architectures=["LlamaModel"])),
        severity="warning",
        exit=0,
        expected="",
        observed="model.",
    ),
    Near(
        "prefix-mismatch",
        "the base class has no root",
        family("llama", rename(r"^model\.", ""), drop(HEAD), config(architectures=["LlamaModel"])),
    ),
    Fires(
        "prefix-mismatch",
        "nested twice",
        wrapped("llama", r"^", "language_model.language_model."),
        expected="",
        observed="language_model.language_model.",
    ),
    # -- wrappers
    *(
        Fires("wrapper-prefix", p, wrapped("llama", "^", p), expected="", observed=p)
        for p in ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "base_model.model.")
    ),
    Fires("wrapper-prefix", "two stacked", wrapped("gpt_neox", "^", "module._orig_mod."), observed="module._orig_mod."),
    Fires(
        "wrapper-prefix",
        "in mid-path",
        wrapped("llama", r"(layers\.\d+\.)", r"\1_orig_mod."),
        observed="_orig_mod.",
        says=["18 keys"],
    ),
    Fires(
        "wrapper-prefix",
        "in one layer only",
        wrapped("llama", r"(layers\.1\.)", r"\1_checkpoint_wrapped_module."),
        says=["9 keys"],
    ),
    Fires(
        "wrapper-prefix",
        "what PEFT leaves of a layer",
        family("llama", rename(r"(q|v)_proj\.weight", r"\1_proj.base_layer.weight")),
        observed="base_layer.",
        says=["4 keys"],
    ),
    Fires(
        "unexpected-key",
        "an adapter among the weights",
        family("llama", add((2, 8), "model.layers.{0-1}.self_attn.q_proj.lora_A.weight")),
        says=["merge_and_unload()"],
        tensors=2,
    ),
    Fires(
        "wrapper-prefix",
        "stripped it would collide with a key that is there",
        family("llama", copy(Q.format(0), f"module.{Q.format(0)}")),
        says=["1 would collide"],
        beside=["unexpected-key"],
    ),
    Near(
        "wrapper-prefix",
        "the word inside a name",
        family("llama", add((8, 8), "value_module.weight")),
        exit=1,
        beside=["unexpected-key"],
    ),
    # -- gamma and beta
    Fires(
        "legacy-name",
        "BERT, whose class loads it",
        family("bert", rename(r"LayerNorm\.weight$", "LayerNorm.gamma"), rename(r"LayerNorm\.bias$", "LayerNorm.beta")),
        severity="warning",
        exit=0,
    ),
    Fires(
        "legacy-name",
        "GPT-2, whose class does not",
        family("gpt2", rename(r"ln_1\.weight$", "ln_1.gamma"), rename(r"ln_1\.bias$", "ln_1.beta")),
        says=["4 parameters"],
    ),
    Near(
        "legacy-name",
        "gamma that is a module",
        family("bert", add((8, 8), "bert.encoder.layer.0.gamma.weight")),
        exit=1,
        beside=["unexpected-key"],
    ),
    Near(
        "legacy-name",
        "gamma where no norm is",
        family("bert", add((8,), "bert.encoder.gamma")),
        exit=1,
        beside=["unexpected-key"],
    ),
    Near(
        "legacy-name",
        "gamma in place of a projection's weight",
        family("llama", rename(r"layers\.0\.mlp\.up_proj\.weight$", "layers.0.mlp.up_proj.gamma")),
        exit=1,
        beside=["missing-key", "unexpected-key"],
    ),
    # -- ties
    Fires(
        "tied-weights-mismatch",
        "declared, and the bytes differ",
        family("llama", config(tie_word_embeddings=True)),
        subject=f"tie.{HEAD}",
        tensors=[HEAD, EMBED],
    ),
    Fires(
        "tied-weights-mismatch",
        "one number differs",
        family("llama", config(tie_word_embeddings=True), copy(EMBED, HEAD), lambda d: put(HEAD, _nudged(d))(d)),
        args=["--level", "values"],
        says=["all bytes"],
    ),
    Near(
        "tied-weights-mismatch",
        "declared, and the bytes are equal",
        family("llama", config(tie_word_embeddings=True), copy(EMBED, HEAD)),
    ),
    Near("tied-weights-mismatch", "not declared, and the bytes differ", family("llama")),
    Fires(
        "alias-missing",
        "no head, and the tie is declared false",
        family("llama", drop(HEAD)),
        says=[HEAD],
        beside=["missing-key"],
    ),
    Fires(
        "alias-missing",
        "no head, and the tie is a class default",
        family("llama", drop(HEAD), unset("tie_word_embeddings")),
        says=[HEAD],
        beside=["missing-key"],
    ),
    Near("alias-missing", "no head, and the tie is declared", family("llama_tied")),
    Near("alias-missing", "GPT-2 ties where its config does not say", family("gpt2", unset("tie_word_embeddings"))),
    # -- what it is
    Fires(
        "unknown-architecture",
        "a model type that the library lacks",
        family("llama", config(model_type="mamba9", architectures=["Mamba9"])),
        severity="warning",
        exit=3,
        says=["mamba9", "100%"],
    ),
    Fires(
        "unknown-architecture",
        "a class that the manifest does not know",
        family("llama", config(architectures=["LlamaForTea"])),
        severity="warning",
        exit=3,
        subject="LlamaForTea",
    ),
    Fires(
        "unknown-architecture",
        "keys of no family and no config",
        family("llama", no_config, rename(r"^(.*)$", r"x_\1")),
        severity="warning",
        exit=3,
        beside=["config-missing"],
    ),
    Near(
        "unknown-architecture",
        "no config, and keys of a family",
        family("gpt_neox", no_config),
        exit=3,
        beside=["config-missing"],
    ),
    Fires(
        "adapter-only",
        "LoRA without its base",
        then(family("llama", adapter), as_adapter_file),
        severity="warning",
        exit=3,
        beside=[],
    ),
    Near(
        "adapter-only", "a whole model beside an adapter's config", family("llama", file("adapter_config.json", "{}"))
    ),
    Fires(
        "sharded-training-state", "FSDP flat parameter", family("llama", flat), says=["FULL_STATE_DICT"], beside=None
    ),
    Fires("sharded-training-state", "ZeRO-3: shape [0]", family("llama", zero3), says=["zero_to_fp32"], beside=None),
    Near(
        "sharded-training-state",
        "one empty tensor",
        family("llama", reshape((0,), Q.format(0))),
        exit=1,
        beside=["shape-mismatch"],
    ),
    # -- derived buffers
    Fires(
        "derived-buffer-mismatch",
        "inv_freq of another width",
        family("llama", put("model.layers.0.self_attn.rotary_emb.inv_freq", [1.0, 0.1, 0.01])),
        severity="warning",
        exit=0,
        expected=[2],
        observed=[3],
    ),
    Fires(
        "derived-buffer-mismatch",
        "inv_freq that was never filled",
        family("llama", put("model.layers.0.self_attn.rotary_emb.inv_freq", [0.0, 0.0])),
        severity="warning",
        exit=0,
        expected=1.0,
        observed=0.0,
    ),
    Fires(
        "derived-buffer-mismatch",
        "inv_freq of another rope_theta",
        family("llama", put("model.layers.0.self_attn.rotary_emb.inv_freq", [1.0, 500000**-0.5])),
        severity="warning",
        exit=0,
        expected=0.01,
    ),
    Near(
        "derived-buffer-mismatch",
        "inv_freq that config scales",
        family(
            "llama",
            put("model.layers.0.self_attn.rotary_emb.inv_freq", [1.0, 0.00125]),
            config(rope_parameters={"rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0}),
        ),
    ),
    Near(
        "derived-buffer-mismatch",
        "inv_freq in half precision",
        family("llama", put("model.layers.0.self_attn.rotary_emb.inv_freq", [1.0, 0.01], "F16")),
    ),
    Near(
        "derived-buffer-mismatch",
        "inv_freq whose first entry is one",
        family("llama", put("model.layers.0.self_attn.rotary_emb.inv_freq", [1.0, 0.01])),
    ),
]


def _nudged(d: Draft) -> np.ndarray:
    numbers = np.frombuffer(d.tensors[EMBED].data, "<f4").reshape(16, 8).copy()
    numbers[7, 3] += 1
    return numbers


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_keys(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


# Declared (None: the key is absent, and LLaMA's class default is untied), head stored, bytes equal -> the finding.
TRUTH = {
    (True, True, True): None,
    (True, True, False): "tied-weights-mismatch",
    (True, False, None): None,
    (False, True, True): None,
    (False, True, False): None,
    (False, False, None): "alias-missing",
    (None, True, True): None,
    (None, True, False): None,
    (None, False, None): "alias-missing",
}


@pytest.mark.parametrize(("declared", "stored", "equal"), TRUTH)
@pytest.mark.parametrize("level", ["headers", "values"])
def test_the_truth_table_of_ties(
    declared: bool | None, stored: bool, equal: bool | None, level: str, tmp_path: Path
) -> None:
    edits: list[Edit] = [unset("tie_word_embeddings") if declared is None else config(tie_word_embeddings=declared)]
    if not stored:
        edits.append(drop(HEAD))
    elif equal:
        edits.append(copy(EMBED, HEAD))
    outcome = inspect(family("llama", *edits)(tmp_path), "--level", level)
    wanted = TRUTH[declared, stored, equal]
    assert set(outcome.names) - {"missing-key"} == ({wanted} if wanted else set())
    assert outcome.status == (1 if wanted else 0)


def test_a_tie_with_the_embedding_absent_is_an_alias(tmp_path: Path) -> None:
    """Only the head is stored: transformers takes the embedding from it; a loader that does not has no embedding."""
    outcome = inspect(family("llama", config(tie_word_embeddings=True), drop(EMBED))(tmp_path))
    assert "alias-missing" in outcome.names
    assert outcome.status == 1


WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


@pytest.mark.parametrize("stack", [*itertools.permutations(WRAPPERS, 2)])
def test_wrappers_in_any_order(stack: tuple[str, str], tmp_path: Path) -> None:
    prefix = "".join(stack)
    (finding,) = inspect(wrapped("llama", "^", prefix)(tmp_path)).findings
    assert (finding["name"], finding["observed"]) == ("wrapper-prefix", prefix)


MLP = "model.layers.{}.mlp.*"


@pytest.mark.parametrize(
    ("name", "lost", "cited"),
    [
        ("llama", [EMBED], []),
        ("llama", [Q.format("*")], []),
        ("llama", [Q.format("1"), Q.format("0").replace("q_proj", "k_proj")], []),
        (
            "llama",
            [MLP.format("1").replace("*", "up_proj.weight"), MLP.format("0").replace("*", "down_proj.weight")],
            [],
        ),
        ("llama", [MLP.format("*")], [25, 25, 25]),
        # In one layer the branch is gone, in the other one tensor of it.
        ("llama", [MLP.format("1"), MLP.format("0").replace("*", "up_proj.weight")], [25, 25, 25]),
        ("qwen3_moe", ["model.layers.1.mlp.experts.*"], []),
        ("qwen3_moe", ["model.layers.1.mlp.*"], [25, 25, 25, 25]),
    ],
)
def test_a_lost_tensor_is_no_failure_of_the_lab_and_a_lost_branch_is(
    name: str, lost: list[str], cited: list[int], tmp_path: Path
) -> None:
    found = [f for f in inspect(family(name, drop(*lost))(tmp_path)).findings if f["name"] == "missing-key"]
    assert found
    assert [n for f in found for n in f["lab"]] == cited


def test_a_fault_below_a_wrapper_is_still_found(tmp_path: Path) -> None:
    outcome = inspect(family("llama", drop("model.norm.weight"), rename("^", "module."))(tmp_path))
    assert sorted(outcome.grave) == ["final-norm-missing", "wrapper-prefix"]


def test_both_gamma_and_weight_collide(tmp_path: Path) -> None:
    """A file with both loads gamma; which of the two was meant cannot be known."""
    key = "bert.encoder.layer.0.output.LayerNorm.weight"
    outcome = inspect(family("bert", copy(key, key.replace("weight", "gamma")))(tmp_path))
    assert outcome.status == 1
    assert "unexpected-key" in outcome.grave or "legacy-name" in outcome.grave or "norm-unexpected" in outcome.grave
