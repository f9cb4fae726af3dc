"""Where the config of a larger model keeps that of its text stack, and which of its classes stands for it."""

from __future__ import annotations

from typing import Any

import pytest

from blockaudit.manifest.library import effective_config, speaks_of
from blockaudit.manifest.text_stack import text_class

LLAMA = {"model_type": "llama", "hidden_size": 8}
CLASSES = ("LlamaForCausalLM", "LlamaForSequenceClassification", "LlamaModel")


@pytest.mark.parametrize("place", ["text_config", "llm_config", "language_config"])
def test_an_inner_config_that_the_library_speaks_of(place: str) -> None:
    config = {"model_type": "larger", place: LLAMA, "hidden_size": 5}
    inner = effective_config(config)
    assert inner == LLAMA
    assert speaks_of(config)


def test_two_levels_down() -> None:
    inner = effective_config(
        {"model_type": "omni", "thinker_config": {"text_config": LLAMA, "tie_word_embeddings": True}}
    )
    assert inner == {**LLAMA, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "text_config": {"model_type": "gpt2"}},
        {"model_type": "nobody", "text_config": {"model_type": "nobody_text"}},
        {"model_type": "nobody", "text_config": "llama"},
        {"model_type": "nobody", "thinker_config": {"text_config": None}},
        {"model_type": None, "text_config": []},
        {},
    ],
)
def test_a_config_that_stands_for_itself(config: dict[str, Any]) -> None:
    assert effective_config(config) is config


def test_the_larger_model_says_whether_the_head_is_tied() -> None:
    inner = {**LLAMA, "tie_word_embeddings": False}
    assert (effective_config({"text_config": inner, "tie_word_embeddings": True}) or {})["tie_word_embeddings"] is True
    assert (effective_config({"text_config": inner}) or {})["tie_word_embeddings"] is False


def test_fields_beside_a_vision_config() -> None:
    flat = {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"], "hidden_size": 8}
    inner = effective_config(flat)
    assert inner == {"model_type": "qwen2_vl_text", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8}


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        ("LlavaForConditionalGeneration", "LlamaForCausalLM"),
        ("LlavaModel", "LlamaModel"),
        ("XForSequenceClassification", "LlamaForSequenceClassification"),
        ("XForTokenClassification", None),
        ("Larger", None),
        ("", None),
    ],
)
def test_the_class_with_the_same_head(outer: str, expected: str | None) -> None:
    assert text_class({"architectures": [outer]}, CLASSES) == expected


@pytest.mark.parametrize("named", [None, [], "X", [1], {}])
def test_no_class_is_named(named: Any) -> None:
    assert text_class({"architectures": named}, CLASSES) is None
