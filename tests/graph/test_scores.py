"""Score routes between attentions: seen in every form, held against the manifest, and never taken for the stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from blockaudit.graph import scores
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import record_module
from blockaudit.manifest.diff import compare
from blockaudit.manifest.load import load
from tests.families import models
from tests.support.audit import inspect

WIDTH, HEADS = 16, 2


class Layer(nn.Module):
    """A Pre-LN layer whose attention returns the scores that the next one may add."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor, before: Tensor | None, form: str, number: int) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in parts)
        own = q @ k.transpose(-1, -2) / 8**0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        joined = own if before is None else _join(form, own, before, number)
        if form == "fused":
            bias = torch.zeros(length, length).masked_fill(hidden, -1e9) + (0 if before is None else before)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        else:
            mixed = joined.masked_fill(hidden, -1e9).softmax(-1) @ v
        route = joined.masked_fill(hidden, -1e9) if form == "masked" else own if form == "last" else joined
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(self.up(self.second(x)).relu()), route


def _join(form: str, own: Tensor, before: Tensor, number: int) -> Tensor:
    match form:
        case "none":
            return own
        case "mean":
            return ((number - 1) * before + own) / number
        case "half":
            return own + 0.5 * before
        case "one layer":
            return own + before if number == 3 else own
        case "chosen":  # a mask that earlier scores choose is no score
            return own.masked_fill(before > before.max(-1, keepdim=True).values, -1e9)
        case _:
            return before + own


class Model(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.table = form, nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50)

    def forward(self, input_ids: Tensor) -> Tensor:
        x, before = self.table(input_ids), None
        for number, layer in enumerate(self.layers, 1):
            x, before = layer(x, before, self.form, number)
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    ("form", "route", "seen"),
    [
        ("none", "none", ""),
        ("sum", "sum", "masked after the residual"),
        ("mean", "mean", "masked after the residual"),
        ("masked", "sum", "masked before the residual"),
        ("half", "other", ""),
        ("last", "other", ""),
        ("one layer", "other", "in 1 of 3 branches"),
        ("fused", "other", ""),
        ("chosen", "none", ""),
    ],
)
def test_a_route_is_read_by_what_products_weigh(form: str, route: str, seen: str) -> None:
    recording = record_module(Model(form))
    reader = Reader(recording)
    end = reader.end()
    assert end is not None
    stream = reader.stream(end)
    assert stream.unread == ()
    assert [b.kind for a in stream.adds for b in a.branches] == ["causal_self_attention", "mlp"] * 3
    attentions = [scores.attention(reader.graph, b.kind, b, a.shortcut) for a in stream.adds for b in a.branches]
    found = scores.routes(scores.Reader(reader.graph, recording.constants), attentions)
    assert found["causal_self_attention"].form == route
    assert seen in found["causal_self_attention"].evidence


USER = """
import types, torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama as llama

def made(source, dtype, join):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").eval()
    route = []
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **other):
        batch, length, _ = hidden_states.shape
        q, k, v = (p(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = llama.apply_rotary_pos_emb(q, k, *position_embeddings)
        k, v = (llama.repeat_kv(t, self.num_key_value_groups) for t in (k, v))
        scores = q @ k.transpose(2, 3) * self.scaling
        if self.layer_idx == 0:
            route.clear()
        if join and route:
            scores = scores + route[-1]
        route.append(scores)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, -1e9).softmax(-1) @ v
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), None
    for layer in model.model.layers:
        layer.self_attn.forward = types.MethodType(forward, layer.self_attn)
    return model

def joined(source, *, device, dtype):
    return made(source, dtype, True)

def apart(source, *, device, dtype):
    return made(source, dtype, False)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    models.build("llama").save_pretrained(folder / "model")
    (folder / "user.py").write_text(USER, encoding="utf-8")
    return folder / "model"


@pytest.mark.parametrize(("name", "named"), [("apart", []), ("joined", ["score-residual-mismatch"])])
def test_a_route_that_nobody_declared_is_named(name: str, named: list[str], source: Path) -> None:
    outcome = inspect(source, "--level", "graph", "--candidate", f"{source.parent / 'user.py'}:{name}")
    assert (outcome.status, outcome.grave) == (1 if named else 0, named)


def _declaring(route: str, folder: Path) -> Path:
    text = json.loads((Path(__file__).parents[2] / "manifests" / "llama.json").read_text(encoding="utf-8"))
    text["stacks"][0]["branches"][0]["score_route"] = route
    path = folder / f"{route}.json"
    path.write_text(json.dumps(text), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("route", "name", "named"),
    [
        ("sum", "joined", []),
        ("mean", "joined", ["score-residual-mismatch"]),
        ("sum", "apart", ["score-residual-mismatch"]),
    ],
)
def test_a_declared_route_is_held(route: str, name: str, named: list[str], source: Path, tmp_path: Path) -> None:
    manifest, user = _declaring(route, tmp_path), f"{source.parent / 'user.py'}:{name}"
    outcome = inspect(source, "--level", "graph", "--candidate", user, "--manifest", str(manifest))
    assert outcome.grave == named
    assert outcome.report is not None
    rows = {r["field"]: r for r in outcome.report["contract"]}
    assert rows["decoder.self_attention.score_route"]["declared"] == route


def test_two_manifests_differ_by_a_route(tmp_path: Path) -> None:
    one, two = (load(str(_declaring(route, tmp_path))).manifest for route in ("none", "sum"))
    assert [(d.field, d.a, d.b, d.changes) for d in compare(one, two).contract] == [
        ("decoder.self_attention.score_route", "none", "sum", "function")
    ]
