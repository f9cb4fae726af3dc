"""Whether an attention sees later positions is shown by replay, or is not told at all."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from blockaudit.graph.reader import Reader
from blockaudit.graph.record import record_module
from tests.support.audit import inspect

WIDTH = 8
CAUSAL, OPEN, UNKNOWN = "causal_self_attention", "self_attention", "unclassified"
FUSED = {"flag", "fused boolean", "fused float", "fused open", "fused padding", "fused stored"}


class Model(nn.Module):
    """One attention between a table and a projection, masked in one of many ways."""

    stored: Tensor

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.table, self.norm, self.qkv = nn.Embedding(10, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        # Larger than what is looked at.
        self.register_buffer("stored", torch.full((3000, 3000), -torch.inf).triu(1), persistent=False)
        self.frozen = nn.Parameter(torch.full((7, 7), -torch.inf).triu(1), requires_grad=False)
        self.learned = nn.Parameter(torch.zeros(7, 7))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.table(input_ids)
        batch, length, _ = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, 2, -1).transpose(1, 2) for t in parts)
        mixed = self.fused(q, k, v, attention_mask) if self.way in FUSED else self.weights(q, k) @ v
        return self.head(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))

    def fused(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
        whole = torch.ones(7, 7)
        masks = {
            "fused boolean": whole.tril().bool(),
            "fused float": (whole * -1e9).triu(1),
            "fused padding": valid[:, None, None, :].bool(),
            "fused stored": self.stored[:7, :7],
        }
        attend = nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=masks.get(self.way), is_causal=self.way == "flag")

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        w, later = q @ k.transpose(-1, -2), torch.ones(7, 7).triu(1)
        match self.way:
            case "filled":
                w = w.masked_fill(later.bool(), -1e9)
            case "stored":
                w = w + self.stored[:7, :7]
            case "frozen":
                w = w + self.frozen
            case "learned":
                w = w + self.learned
            case "too little":
                w = w - 50 * later
            case _:
                pass
        w = w.softmax(-1)
        return w * (1 - later) / (w * (1 - later)).sum(-1, keepdim=True) if self.way == "afterwards" else w


WAYS = {
    "flag": CAUSAL, "fused boolean": CAUSAL, "fused float": CAUSAL, "fused open": OPEN, "fused padding": OPEN,
    "fused stored": UNKNOWN, "open": OPEN, "filled": CAUSAL, "afterwards": CAUSAL, "learned": OPEN, "stored": UNKNOWN,
    "frozen": UNKNOWN, "too little": UNKNOWN,
}  # fmt: skip


@pytest.mark.parametrize(("way", "kind"), WAYS.items())
def test_a_mask_is_shown_or_not_told(way: str, kind: str) -> None:
    reader = Reader(record_module(Model(way)))
    end = reader.end()
    assert end is not None
    stream = reader.stream(end)
    assert [b.kind for a in stream.adds for b in a.branches] == [kind]
    assert [d.partition(": ")[2].partition(":")[0] for d in stream.unread] == (
        ["whether this attention sees later positions is not shown"] if kind == UNKNOWN else []
    )


USER = """
import types, torch
from transformers import AutoModelForCausalLM

def made(source, dtype, **more):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").eval()
    for layer in model.model.layers:
        layer.self_attn.register_buffer("seen", torch.full((3000, 3000), torch.finfo(dtype).min).triu(1), False)
        own = layer.self_attn.forward
        layer.self_attn.forward = lambda *a, own=own, attn=layer.self_attn, **k: own(
            *a, **{**k, "attention_mask": None if more.get("open") else attn.seen[:7, :7]})
    return model

def hidden(source, *, device, dtype):
    return made(source, dtype)

def leaks(source, *, device, dtype):
    return made(source, dtype, open=True)
"""


@pytest.mark.parametrize(
    ("name", "status", "named"), [("hidden", 3, {"graph-unclassified"}), ("leaks", 1, {"causal-leak"})]
)
def test_only_a_leak_that_is_shown_is_one(name: str, status: int, named: set[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.families import models

    models.build("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    outcome = inspect(tmp_path / "model", "--level", "graph", "--candidate", f"{tmp_path / 'user.py'}:{name}")
    assert (outcome.status, {*outcome.grave}) == (status, named)
