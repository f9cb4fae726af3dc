"""Any mixture of removed, added, renamed and reshaped keys: an answer, and never a wrong yes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.audit import Outcome, inspect
from tests.support.checkpoint import Draft, draft, trained, write

FAMILIES = ("llama", "gemma2", "qwen3_moe", "bert", "opt", "t5")
KEYS = {name: sorted(draft(name).tensors) for name in FAMILIES}
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
WORDS = (
    *("weight", "bias", "gamma", "beta", "norm", "layernorm", "q_norm", "q_proj", "module", "_orig_mod", "model"),
    *("layers", "0", "1", "2", "00", "crossattention", "lora_A", "inv_freq", "qweight", "weight_scale_inv"),
    *("scale", "absmax", "flat_param", "experts", "lm_head"),
)
words = st.sampled_from(WORDS)
names = st.one_of(st.lists(words, min_size=1, max_size=6).map(".".join), st.text(min_size=1, max_size=20))
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 40),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)


@st.composite
def edited(draw: st.DrawFn, family: str) -> tuple[Draft, dict[str, Any]]:
    """A family's checkpoint with some edits, and what they were."""
    made, keys = draft(family), KEYS[family]
    some = st.lists(st.sampled_from(keys), max_size=4, unique=True)
    removed, renamed, reshaped = (
        draw(some),
        draw(some),
        draw(st.dictionaries(st.sampled_from(keys), shapes, max_size=3)),
    )
    for key, shape in reshaped.items():
        made.tensors[key] = trained(key, shape)
    for key in renamed:
        new = draw(
            st.one_of(names, words.map(lambda w, key=key: f"{w}.{key}"), words.map(lambda w, key=key: f"{key}.{w}"))
        )
        if new not in made.tensors and new != "__metadata__":
            made.tensors[new] = made.tensors.pop(key)
    for key in removed:
        made.tensors.pop(key, None)
    for key, shape in draw(st.dictionaries(names, shapes, max_size=3)).items():
        if key not in keys and key != "__metadata__":
            made.tensors[key] = trained(key, shape, draw(st.sampled_from(["F32", "BF16", "I32", "U8", "F8_E4M3"])))
    assert made.config is not None
    said = draw(
        st.dictionaries(st.sampled_from(sorted(made.config)), values, max_size=draw(st.sampled_from([0, 0, 2])))
    )
    made.config |= said
    return made, said


def answered(made: Draft, *args: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        outcome = inspect(write(made, Path(folder)), *args)
    assert outcome.status in (0, 1, 3), outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.report is not None
    assert {0: "accepted", 1: "rejected", 3: "unverified"}[outcome.status] == outcome.report["verdict"]
    return outcome


def sound(family: str, made: Draft, said: dict[str, Any]) -> None:
    """Nothing that the family needs may be gone, or of another shape, and the verdict `accepted`."""
    outcome = answered(made)
    whole = draft(family).tensors
    spoilt = [k for k, t in whole.items() if k not in made.tensors or made.tensors[k].shape != t.shape]
    if spoilt and not said:
        assert outcome.report is not None
        assert outcome.report["verdict"] != "accepted", spoilt


quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
long = settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@quick
def test_any_edits(family: str, data: st.DataObject) -> None:
    sound(family, *data.draw(edited(family)))


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@long
def test_many_edits(family: str, data: st.DataObject) -> None:
    sound(family, *data.draw(edited(family)))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_key_alone_may_be_lost(family: str) -> None:
    """Each key in turn: tied copies are not written, so that every key that is written is needed."""
    for key in KEYS[family]:
        made = draft(family)
        del made.tensors[key]
        assert answered(made).status == 1, key


@pytest.mark.parametrize("family", FAMILIES)
def test_no_shape_alone_may_differ(family: str) -> None:
    for key in KEYS[family]:
        made = draft(family)
        shape = made.tensors[key].shape
        made.tensors[key] = trained(key, (*shape[:-1], shape[-1] + 1))
        assert answered(made).status == 1, key


@pytest.mark.parametrize("family", FAMILIES)
def test_any_config_value_is_answered(family: str) -> None:
    """Each field of config.json as null, word, negative, huge, object: a finding or a default, never a traceback."""
    config = draft(family).config
    assert config is not None
    for field in config:
        for value in (None, "x", -1, 2**40, {}):
            made = draft(family)
            assert made.config is not None
            made.config[field] = value
            answered(made)
