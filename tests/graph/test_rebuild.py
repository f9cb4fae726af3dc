"""A stack rebuilt from its reading gives what the model gives; a reading that was tampered with does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit.graph import live, specimen, tiny
from blockaudit.graph.reader import Reader
from blockaudit.graph.rebuild import Verdict, rebuild
from blockaudit.graph.stream import Stream

pytestmark = pytest.mark.soak  # about two minutes

CLASSES = {
    "llama": "LlamaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "bert": "BertForMaskedLM",
    "t5": "T5ForConditionalGeneration",
}


@cache
def _run(model_type: str) -> tuple[Any, Any]:
    """A recording with real weights, and what its operators give on fresh tokens."""
    _, config, recording = specimen.build(model_type, CLASSES[model_type])
    fresh = tiny.inputs(config, 2).values()
    return recording, live.values(recording, fresh, live.weights(recording))


def _verdict(model_type: str, change: Callable[[Stream], Stream]) -> Verdict:
    recording, run = _run(model_type)
    end = recording.hidden["decoder"]
    return rebuild(recording, change(Reader(recording).stream(end)), end, run)


@pytest.mark.parametrize("model_type", CLASSES)
def test_a_family_is_confirmed_down_to_its_logits(model_type: str) -> None:
    row = specimen.examine("", model_type, CLASSES[model_type])
    assert (row["verdict"], row["reason"]) == ("confirmed", "")
    recording, run = _run(model_type)
    for end in recording.hidden.values():
        verdict = rebuild(recording, Reader(recording).stream(end), end, run)
        assert (verdict.kind, verdict.error < 1e-9) == ("confirmed", True)


def _branches(stream: Stream, **changed: Any) -> Stream:
    """The second add with its first branch changed."""
    add = stream.adds[1]
    first, *others = add.branches
    return _add(stream, branches=(replace(first, **changed), *others))


def _add(stream: Stream, **changed: Any) -> Stream:
    first, second, *others = stream.adds
    return replace(stream, adds=(first, replace(second, **changed), *others))


def _epsilon(stream: Stream) -> Stream:
    norm = stream.adds[1].branches[0].norm_in
    assert norm is not None
    assert norm.epsilon is not None
    return _branches(stream, norm_in=replace(norm, epsilon=10 * norm.epsilon))


def _family(stream: Stream) -> Stream:
    norm = stream.adds[1].branches[0].norm_in
    assert norm is not None
    other = "rmsnorm" if norm.family == "layernorm" else "layernorm"
    return _branches(stream, norm_in=replace(norm, family=other, variance_correction=0))


def _swapped(stream: Stream) -> Stream:
    """The first and the second add read each other's norm."""
    first, second = stream.adds[0].branches[0], stream.adds[1].branches[0]
    return _branches(stream, norm_in=first.norm_in, update=second.update)


TAMPERED: list[tuple[str, Callable[[Stream], Stream]]] = [
    *((m, f) for m in ("llama", "gemma2", "gpt_neox", "t5") for f in (_epsilon, _family, _swapped)),
    *((m, lambda s: _add(s, shortcut_scale=2.0)) for m in CLASSES),
    *((m, lambda s: _branches(s, scale=0.5)) for m in CLASSES),
    ("llama", lambda s: replace(s, final_norm=None)),
    ("gemma2", lambda s: replace(s, embedding_scale=1.0)),
    ("bert", lambda s: _add(s, norm_post=replace(s.adds[1].norm_post, epsilon=1e-5))),
    ("olmo2", lambda s: _branches(s, norm_out=replace(s.adds[1].branches[0].norm_out, scale_offset=1))),
]


@pytest.mark.parametrize(("model_type", "change"), TAMPERED)
def test_a_tampered_reading_is_contradicted(model_type: str, change: Callable[[Stream], Stream]) -> None:
    verdict = _verdict(model_type, change)
    assert verdict.kind == "contradicted"
    assert verdict.reason
    assert verdict.state is None


def test_the_add_that_differs_is_named() -> None:
    assert _verdict("llama", lambda s: _add(s, shortcut_scale=2.0)).first == 1


def test_a_stack_that_was_read_in_part_is_not_read() -> None:
    half = _verdict("llama", lambda s: replace(s, adds=s.adds[2:], start=s.adds[2].shortcut))
    assert (half.kind, half.state) == ("not read", None)
    assert _verdict("llama", lambda s: replace(s, adds=())).kind == "not read"
