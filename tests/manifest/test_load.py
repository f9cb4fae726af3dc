"""Which manifest is loaded, and which is refused before anything is held against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockaudit.errors import RequestError
from blockaudit.manifest.library import scored
from blockaudit.manifest.load import load
from tests.support.checkpoint import draft
from tests.support.manifests import library

Q = "stacks.0.branches.0.tensors.0.shape.0"


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("f(1)", "can be called"),
        ("(1).__class__", "Attribute is not part of the grammar"),
        ("lambda: 0", "Lambda is not part of the grammar"),
        ("\u0663", "is not an expression"),
        ("d_modle", "reads 'd_modle', which dims does not have"),
        ("2 ** 99999999", "power out of range"),
        ("1 // 0", "has no value"),
    ],
)
def test_a_shape_that_cannot_be_computed_is_refused(shape: str, said: str, tmp_path: Path) -> None:
    """It would be a shape that nothing is held to."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(library("llama", {Q: shape})))
    with pytest.raises(RequestError, match=r"m\.json: decoder\.self_attention\.q\.shape: ") as refused:
        load(str(path))
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["falcon", "bloom", "gpt2", "bert", "t5", "deepseek_v3", "stablelm_parallel", "opt"])
def test_keys_alone_find_the_family(name: str) -> None:
    """Also where the family has norms that this model of it does without."""
    model = draft(name)
    assert scored(model.tensors)[0] == (model.model_type, pytest.approx(1.0, abs=0.15))
