"""LLaMA as litgpt stores it, to transformers and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockaudit.pipeline.mapping import check_map
from tests.migrate.library.layouts import litgpt
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, there


@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
def test_litgpt(tmp_path: Path, sizes: Sizes) -> None:
    config, weights = litgpt.config(sizes), litgpt.weights(sizes, 4)
    litgpt.save(weights, config, tmp_path / "source")
    target = there("litgpt_llama", tmp_path / "source", tmp_path / "target")
    agree(computed(target, tokens(sizes)), litgpt.logits(weights, config, tokens(sizes)))
    same_bytes(back("litgpt_llama", target, tmp_path / "again"), weights)


def test_nothing_of_its_config_is_left_in_the_target(tmp_path: Path) -> None:
    litgpt.save(litgpt.weights(PLAIN, 4), litgpt.config(PLAIN), tmp_path / "source")
    target = there("litgpt_llama", tmp_path / "source", tmp_path / "target")
    assert json.loads((target / "config.json").read_text()) == {
        "architectures": ["LlamaForCausalLM"], "head_dim": 8, "hidden_size": 32, "intermediate_size": 48,
        "max_position_embeddings": 16, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "vocab_size": 96,
        "rope_parameters": {"rope_theta": 5000, "rope_type": "default"},
    }  # fmt: skip


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "interleaved pairs": ({"rope_interleave": True}, "paired as interleaved in the source and half in the target"),
    "half of a head turns": ({"rotary_percentage": 0.5}, "rotary.dim"),
    "positions condensed": ({"rope_condense_ratio": 4}, "rotary.type"),
    "stretched frequencies": (
        {"rope_adjustments": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
        "rotary.factor",
    ),
    "parallel branches": ({"parallel_residual": True}, "parallel"),
    "scaled embeddings": ({"scale_embeddings": True}, "embedding.scale"),
    "scores scaled otherwise": ({"attention_scores_scalar": 64}, "self_attention.scale"),
    "capped scores": ({"attention_logit_softcapping": 50.0}, "softcap"),
    "capped logits": ({"final_logit_softcapping": 30.0}, "softcap"),
    "a window": ({"sliding_window_size": 4}, "window"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_litgpt_that_is_no_llama_is_refused(tmp_path: Path, name: str) -> None:
    """These keys are left out of the target's config, for no LLaMA has them; set, they make another function."""
    more, field = OTHERS[name]
    litgpt.save(litgpt.weights(PLAIN, 4), {**litgpt.config(PLAIN), **more}, tmp_path / "source")
    report = check_map("litgpt_llama", tmp_path / "source")
    assert report.verdict == "rejected"
    said = [f for f in report.findings if f.name in ("topology-change-needs-retraining", "map-undeclared-layout")]
    assert any(field in f.message for f in said), [(f.name, f.message) for f in report.findings]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_layer: [", "model_config.yaml"),
        ("- n_layer", "holds no object"),
        ("n_layer: 2\nn_layer: 3\n", "given twice"),
        ("n_layer: !!python/object/apply:os.system ['true']", "model_config.yaml"),
    ],
)
def test_a_config_that_cannot_be_read_is_told_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    litgpt.save(litgpt.weights(PLAIN, 4), litgpt.config(PLAIN), tmp_path / "source")
    (tmp_path / "source" / "model_config.yaml").write_text(text)
    report = check_map("litgpt_llama", tmp_path / "source")
    assert report.verdict == "rejected"
    (found,) = (f for f in report.findings if f.name == "config-invalid")
    assert said in found.message


def test_a_config_elsewhere_is_given_by_name(tmp_path: Path) -> None:
    litgpt.save(litgpt.weights(PLAIN, 4), litgpt.config(PLAIN), tmp_path / "source")
    (tmp_path / "source" / "model_config.yaml").rename(tmp_path / "kept.yaml")
    assert check_map("litgpt_llama", tmp_path / "source").verdict == "rejected"
    assert check_map("litgpt_llama", tmp_path / "source", config=tmp_path / "kept.yaml").verdict == "accepted"
