"""PEFT adapters, alone and on their base: keys, ranks, targets, and the merged key set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import Build, Draft, Edit, add, drop, family, file, put, rename, reshape, then

ROOT = "base_model.model.model.layers"
A, B = ROOT + ".{}.self_attn.q_proj.lora_A.weight", ROOT + ".{}.self_attn.q_proj.lora_B.weight"
SETTINGS: dict[str, Any] = {
    "peft_type": "LORA", "base_model_name_or_path": "some/base", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
}  # fmt: skip
ON_BASE = ("--base", "{folder}/base")


def lora(**settings: Any) -> Edit:
    """q_proj of both layers of a LLaMA of width 8, adapted; a setting of None is left out."""

    def edit(d: Draft) -> None:
        d.tensors.clear()
        add((2, 8), f"{ROOT}.{{0-1}}.self_attn.q_proj.lora_A.weight")(d)
        add((8, 2), f"{ROOT}.{{0-1}}.self_attn.q_proj.lora_B.weight")(d)
        d.config = None
        said = {k: v for k, v in (SETTINGS | settings).items() if v is not None}
        file("adapter_config.json", json.dumps(said))(d)

    return edit


CONV = "base_model.model.transformer.h.{0-1}.attn.c_attn"
TOKENS = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"


def of(module: str, a: tuple[int, int], b: tuple[int, int]) -> Edit:
    """Pairs for another module in place of those for q_proj."""

    def edit(d: Draft) -> None:
        d.tensors.clear()
        add(a, f"{module}.lora_A.weight")(d)
        add(b, f"{module}.lora_B.weight")(d)

    return edit


def ia3(shape: tuple[int, int]) -> Edit:
    """A vector for each target, as IA3 has it."""

    def edit(d: Draft) -> None:
        d.tensors.clear()
        add(shape, f"{ROOT}.{{0-1}}.self_attn.q_proj.ia3_l")(d)

    return edit


def prompt(key: str, shape: tuple[int, int]) -> Edit:
    """The one matrix of prompt tuning."""

    def edit(d: Draft) -> None:
        d.tensors.clear()
        add(shape, key)(d)

    return edit


def named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def adapter(*edits: Edit, base: Build | None = None, **settings: Any) -> Build:
    """An adapter with its base beside it."""

    def beside(folder: Path) -> None:
        (base or family("llama"))(folder.parent / "base")

    return then(family("llama", lora(**settings), *edits), named, beside)


def bare(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


CASES: list[Case] = [
    # -- halves
    Fires(
        "adapter-incomplete", "A without B", adapter(drop(B.format(1))), tensors=[A.format(1)], beside=["adapter-only"]
    ),
    Fires(
        "adapter-incomplete", "B without A", adapter(drop(A.format(0))), tensors=[B.format(0)], beside=["adapter-only"]
    ),
    Fires(
        "adapter-incomplete",
        "A without B, and no settings",
        then(adapter(drop(B.format(1)), rename("^base_model.model.", "")), bare),
        tensors=[A.format(1).removeprefix("base_model.model.")],
        beside=None,
    ),
    Fires(
        "adapter-incomplete",
        "DoRA without magnitudes",
        adapter(use_dora=True),
        says=["lora_magnitude_vector"],
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-incomplete",
        "a module that was to be saved",
        adapter(modules_to_save=["lm_head"]),
        says=["modules_to_save lists lm_head"],
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-incomplete",
        "a layer without its pair",
        adapter(drop(A.format(1), B.format(1))),
        args=ON_BASE,
        tensors=["model.layers.1.self_attn.q_proj.weight"],
    ),
    Fires(
        "adapter-incomplete",
        "a target that the base has, and no key",
        adapter(target_modules=["q_proj", "v_proj"]),
        args=ON_BASE,
        says=["model.layers.0.self_attn.v_proj"],
    ),
    Near(
        "adapter-incomplete",
        "layers that are not to be adapted",
        adapter(drop(A.format(1), B.format(1)), layers_to_transform=[0]),
        args=ON_BASE,
    ),
    Near(
        "adapter-incomplete",
        "DoRA, and a saved head",
        adapter(
            add((8,), f"{ROOT}.{{0-1}}.self_attn.q_proj.lora_magnitude_vector"),
            add((32, 8), "base_model.model.lm_head.weight"),
            use_dora=True,
            modules_to_save=["lm_head"],
        ),
        exit=3,
        beside=["adapter-only"],
    ),
    # -- targets
    Fires(
        "adapter-target-mismatch",
        "keys of a module that is no target",
        adapter(target_modules=["v_proj"]),
        tensors=4,
        beside=["adapter-only", "adapter-target-unmatched"],
    ),
    Fires(
        "adapter-target-mismatch",
        "a weight that was not to be saved",
        adapter(add((8,), "base_model.model.model.norm.weight")),
        tensors=["base_model.model.model.norm.weight"],
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-target-mismatch",
        "biases where none was trained",
        adapter(add((8,), f"{ROOT}.{{0-1}}.self_attn.o_proj.bias")),
        tensors=2,
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-target-mismatch",
        "modules that the base does not have",
        adapter(base=family("gpt_neox")),
        args=ON_BASE,
        says=["2 of 2", "self_attn.q_proj"],
        tensors=4,
    ),
    Near(
        "adapter-target-mismatch",
        "a norm and a head that were saved, under PEFT's own wrappers",
        adapter(
            add((8,), "base_model.model.model.norm.modules_to_save.default.weight"),
            add((32, 8), "base_model.model.lm_head.modules_to_save.weight"),
            add((32, 8), "base_model.model.lm_head.original_module.weight"),
            modules_to_save=["model.norm", "lm_head"],
        ),
        exit=3,
        beside=["adapter-only"],
    ),
    Near(
        "adapter-target-mismatch",
        "a pattern in place of names is not run",
        adapter(target_modules="(a+)+$"),
        exit=3,
        beside=["adapter-only"],
    ),
    Near("adapter-target-mismatch", "a base that is all there", adapter(), args=ON_BASE),
    Fires(
        "adapter-target-unmatched",
        "a name that matched nothing",
        adapter(target_modules=["q_proj", "query_key_value"]),
        severity="warning",
        exit=3,
        expected=["query_key_value"],
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-target-unmatched",
        "nor does the base have it",
        adapter(target_modules=["q_proj", "query_key_value"]),
        args=ON_BASE,
        severity="warning",
        exit=0,
        expected=["query_key_value"],
    ),
    Near("adapter-target-unmatched", "each name has its keys", adapter(), exit=3, beside=["adapter-only"]),
    # -- shapes
    Fires(
        "adapter-shape-mismatch",
        "another rank than the config's",
        adapter(r=4),
        expected=4,
        observed=2,
        tensors=4,
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-shape-mismatch",
        "a pattern that gives another rank",
        adapter(rank_pattern={"layers.1.self_attn.q_proj": 3}),
        expected=3,
        observed=2,
        tensors=[A.format(1), B.format(1)],
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-shape-mismatch",
        "two ranks in one pair",
        adapter(reshape((8, 3), B.format(1))),
        tensors=[A.format(1), B.format(1)],
        says=["different ranks"],
        beside=["adapter-only"],
    ),
    Fires(
        "adapter-shape-mismatch",
        "another width than the base's",
        adapter(reshape((2, 6), A.format(0), A.format(1))),
        args=ON_BASE,
        expected=[8, 8],
        observed=[2, 6],
        tensors=[A.format(0), A.format(1)],
    ),
    Fires(
        "adapter-shape-mismatch",
        "a norm cannot have a low rank",
        adapter(rename("self_attn.q_proj", "input_layernorm"), target_modules=["input_layernorm"]),
        args=ON_BASE,
        expected=[8],
        tensors=4,
    ),
    Near(
        "adapter-shape-mismatch",
        "a rank that a pattern gives",
        adapter(reshape((3, 8), A.format(1)), reshape((8, 3), B.format(1)), rank_pattern={"1.self_attn.q_proj": 3}),
        args=ON_BASE,
    ),
    Near(
        "adapter-shape-mismatch",
        "a rank that a pattern which is not run may give",
        adapter(rank_pattern={r".*\.(q|k)_proj": 2}, r=8),
        args=ON_BASE,
    ),
    Near(
        "adapter-shape-mismatch",
        "a layer that stores its weight turned (Conv1D)",
        adapter(of(CONV, (2, 8), (24, 2)), base=family("gpt2"), target_modules=["c_attn"]),
        args=ON_BASE,
    ),
    Fires(
        "adapter-shape-mismatch",
        "a layer that stores its weight turned, adapted as if it did not",
        adapter(of(CONV, (2, 24), (8, 2)), base=family("gpt2"), target_modules=["c_attn"]),
        args=ON_BASE,
        expected=[8, 24],
        tensors=4,
    ),
    Fires(
        "adapter-shape-mismatch",
        "rows of an embedding that are too long",
        adapter(add((2, 9), TOKENS), trainable_token_indices=[1, 2]),
        args=ON_BASE,
        tensors=[TOKENS],
    ),
    Near(
        "adapter-shape-mismatch",
        "rows of an embedding",
        adapter(add((2, 8), TOKENS), trainable_token_indices=[1, 2]),
        args=ON_BASE,
    ),
    Fires(
        "adapter-shape-mismatch",
        "IA3 that scales neither what goes in nor what comes out",
        adapter(ia3((6, 1)), peft_type="IA3"),
        args=ON_BASE,
        observed=[6, 1],
    ),
    Near("adapter-shape-mismatch", "IA3", adapter(ia3((8, 1)), peft_type="IA3"), args=ON_BASE),
    Fires(
        "adapter-shape-mismatch",
        "a prompt of fewer rows than tokens",
        adapter(prompt("prompt_embeddings", (3, 8)), peft_type="PROMPT_TUNING", num_virtual_tokens=4),
        args=ON_BASE,
        expected=4,
    ),
    Fires(
        "adapter-incomplete",
        "a prompt without its rows",
        adapter(prompt("something_else", (3, 8)), peft_type="PROMPT_TUNING", num_virtual_tokens=3),
        args=ON_BASE,
    ),
    Near(
        "adapter-incomplete",
        "a prompt",
        adapter(prompt("prompt_embeddings", (3, 8)), peft_type="PROMPT_TUNING", num_virtual_tokens=3),
        args=ON_BASE,
    ),
    # -- settings
    Fires(
        "config-invalid",
        "no lora_alpha",
        adapter(lora_alpha=None),
        subject="adapter_config.json",
        says=["lora_alpha is missing"],
        beside=["adapter-only"],
    ),
    Fires(
        "config-invalid",
        "settings that give neither rank nor alpha cannot be merged by",
        adapter(r=None, lora_alpha=None),
        args=ON_BASE,
        times=2,
    ),
    Near(
        "config-invalid",
        "settings that give neither, without a base",
        adapter(r=None, lora_alpha=None),
        exit=3,
        beside=["adapter-only"],
    ),
    Fires(
        "config-invalid",
        "a lora_alpha that is no number",
        adapter(lora_alpha="16"),
        args=ON_BASE,
        observed="16",
    ),
    Fires("config-invalid", "no peft_type", adapter(peft_type=None), says=["peft_type"], beside=["adapter-only"]),
    # -- the merged key set
    Fires(
        "vocab-size-mismatch",
        "rows were added to embedding and head, and the base's config does not know",
        adapter(
            add((34, 8), "base_model.model.model.embed_tokens.weight"),
            add((34, 8), "base_model.model.lm_head.weight"),
            modules_to_save=["embed_tokens", "lm_head"],
        ),
        args=ON_BASE,
        observed=34,
    ),
    Fires(
        "norm-missing",
        "a base that lost a norm",
        adapter(base=family("llama", drop("model.layers.1.input_layernorm.weight"))),
        args=ON_BASE,
        tensors=["model.layers.1.input_layernorm.weight"],
    ),
    Fires(
        "adapter-only",
        "a kind that is not read",
        adapter(rename("lora_A", "hada_w1_a"), rename("lora_B", "hada_w1_b"), peft_type="LOHA"),
        args=ON_BASE,
        severity="warning",
        exit=3,
        says=["LOHA", "the base alone was audited"],
    ),
    Near("adapter-only", "an adapter on its base", adapter(), args=ON_BASE),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_case(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_report_is_of_the_merged_function(tmp_path: Path) -> None:
    source = adapter(put("base_model.model.model.norm.weight", [2.0] * 8), modules_to_save=["model.norm"])(
        tmp_path / "a"
    )
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    outcome = inspect(source, "--base", str(tmp_path / "base"), "--level", "values")
    assert outcome.status == 0, outcome.findings
    assert outcome.report is not None
    subject = outcome.report["subject"]
    assert (subject["source"], subject["base"]) == (str(source), str(tmp_path / "base"))
    assert subject["files"] == ["model.safetensors", "adapter_model.safetensors"]
    assert outcome.report["manifest"]["id"] == "llama"
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_number_of_the_adapter_that_is_none_is_found(tmp_path: Path) -> None:
    spoilt = [float("nan"), *[1.0] * 15]
    source = adapter(lambda d: put(A.format(1), [spoilt[:8], spoilt[8:]])(d))(tmp_path / "a")
    outcome = inspect(source, "--base", str(tmp_path / "base"), "--level", "values")
    assert outcome.status == 1
    assert [(f["name"], f["tensors"]) for f in outcome.findings if f["severity"] == "error"] == [
        ("non-finite-values", [A.format(1)])
    ]


def test_a_finding_points_into_the_folder_that_it_is_about(tmp_path: Path) -> None:
    source = adapter(r=4)(tmp_path / "a")
    outcome = inspect(source, "--base", str(tmp_path / "base"))
    (finding,) = [f for f in outcome.findings if f["name"] == "adapter-shape-mismatch"]
    assert finding["places"][0]["path"] == f"{source}/adapter_model.safetensors"


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (lambda a, b: (b, a), "not a PEFT adapter"),
        (lambda a, b: (a, a), "--base is an adapter itself"),
        (lambda a, b: (a, b / "none"), "no such file"),
    ],
    ids=["a model as SOURCE", "an adapter as base", "no base"],
)
def test_what_cannot_be_merged_is_refused_in_one_line(turn: Any, says: str, tmp_path: Path) -> None:
    source, base = turn(adapter()(tmp_path / "a"), tmp_path / "base")
    outcome = inspect(source, "--base", str(base))
    assert (outcome.status, outcome.report) == (2, None)
    assert says in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
