"""One layer of a real class changed by hand: the rule that names the change fires, and its nearest twin does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit.cli.main import run
from tests.families import models
from tests.support.audit import inspect

USER = """
import types
from transformers import AutoModelForCausalLM

def made(source, dtype, number, attention=None, mlp=None):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").eval()
    def forward(self, hidden_states, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False,
                position_embeddings=None, **other):
        x = hidden_states
        a, _ = self.self_attn(hidden_states=self.input_layernorm(x), attention_mask=attention_mask,
                              position_ids=position_ids, past_key_values=past_key_values, use_cache=use_cache,
                              position_embeddings=position_embeddings, **other)
        h = attention(x, a) if attention else x + a
        u = self.mlp(self.post_attention_layernorm(h))
        return mlp(h, u) if mlp else h + u
    layer = model.model.layers[number]
    layer.forward = types.MethodType(forward, layer)
    return model

def clean(source, *, device, dtype):
    return made(source, dtype, 1)

def swapped(source, *, device, dtype):
    return made(source, dtype, 1, lambda x, a: a + x, lambda h, u: u + h)

def halved(source, *, device, dtype):
    return made(source, dtype, 1, lambda x, a: 0.5 * x + a)

def doubled(source, *, device, dtype):
    return made(source, dtype, 1, lambda x, a: 2 * x + a)

def twice(source, *, device, dtype):
    return made(source, dtype, 1, lambda x, a: (x + a) + x)

def twice_mlp(source, *, device, dtype):
    return made(source, dtype, 1, None, lambda h, u: h + (u + h))

def first(source, *, device, dtype):
    return made(source, dtype, 0, lambda x, a: a)

def middle(source, *, device, dtype):
    return made(source, dtype, 1, lambda x, a: a)

def last(source, *, device, dtype):
    return made(source, dtype, 2, None, lambda h, u: u)

def leak(source, *, device, dtype):
    model = made(source, dtype, 1)
    for layer in model.model.layers:
        own = layer.self_attn.forward
        layer.self_attn.forward = lambda *a, own=own, **k: own(*a, **{**k, "attention_mask": None})
    return model
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    models.build("llama").save_pretrained(folder / "model")
    (folder / "user.py").write_text(USER, encoding="utf-8")
    return folder / "model"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("clean", set()),
        ("swapped", set()),
        ("halved", {"residual-scale-mismatch"}),
        ("doubled", {"residual-scale-mismatch", "residual-duplicated"}),
        ("twice", {"residual-scale-mismatch", "residual-duplicated"}),
        ("twice_mlp", {"residual-scale-mismatch", "residual-duplicated"}),
        ("first", {"residual-dropped"}),
        ("middle", {"residual-dropped"}),
        ("last", {"residual-dropped"}),
        ("leak", {"causal-leak"}),
    ],
)
def test_a_changed_layer_is_named(name: str, named: set[str], source: Path) -> None:
    outcome = inspect(source, "--level", "graph", "--candidate", f"{source.parent / 'user.py'}:{name}")
    assert {f["name"] for f in outcome.findings if f["severity"] != "note"} == named
    assert outcome.status == (1 if named else 0)


def test_an_encoder_that_sees_all_rows_leaks_nothing(tmp_path: Path) -> None:
    models.build("bert").save_pretrained(tmp_path)
    outcome = inspect(tmp_path, "--level", "graph")
    assert (outcome.status, outcome.grave) == (0, [])


def test_a_draft_is_confirmed_by_a_candidate(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    user = source.parent / "user.py"
    assert run(["manifest", "draft", str(source), "--candidate", f"{user}:clean"]) == 0
    assert json.loads(capfd.readouterr().out)["witness"] == "graph"
    assert run(["manifest", "draft", str(source), "--candidate", f"{user}:doubled"]) == 2
    assert "decoder.residual.shortcut_scale" in capfd.readouterr().err
    assert run(["manifest", "draft", str(source), "--candidate", f"{user}:clean", "--level", "headers"]) == 2
