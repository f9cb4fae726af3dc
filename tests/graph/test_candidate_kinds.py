"""Kinds of candidates: encoder-decoders, models of transformers, real widths, and what has no operators to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit import pipeline
from blockaudit.cli.main import run
from tests.families import models
from tests.support.memory import peak

USER = '''
import torch
from torch import nn
from tests.graph.modules import HEADS, Mix, Two, W, V

class Look(nn.Module):
    """Attention over another sequence."""
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(W, W) for _ in range(4))
    def forward(self, x, memory):
        s = self.q(x) @ self.k(memory).transpose(-2, -1) / W**0.5
        return self.o(s.softmax(-1) @ self.v(memory))

class Both(nn.Module):
    """Every row sees every other."""
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(W, W) for _ in range(4))
    def forward(self, x):
        s = self.q(x) @ self.k(x).transpose(-2, -1) / W**0.5
        return self.o(s.softmax(-1) @ self.v(x))

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.out = nn.Embedding(V, W), nn.Linear(W, V)
        self.e = nn.ModuleList(nn.ModuleList([nn.LayerNorm(W), Both(), nn.LayerNorm(W), Two()]) for _ in range(2))
        self.d = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(W), Mix(), nn.LayerNorm(W), Look(), nn.LayerNorm(W), Two()]) for _ in range(2)
        )
        self.end = nn.LayerNorm(W)
    def forward(self, input_ids, attention_mask, decoder_input_ids):
        m = self.t(input_ids)
        for a, f, b, g in self.e:
            m = m + f(a(m))
            m = m + g(b(m))
        x = self.t(decoder_input_ids)
        for a, f, b, c, d, g in self.d:
            x = x + f(a(x))
            x = x + c(b(x), m)
            x = x + g(d(x))
        return {"logits": self.out(self.end(x)), "encoder_last_hidden_state": m}

class Masked(nn.Module):
    """The causal mask is a buffer far longer than the input."""
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(W, W) for _ in range(4))
        self.register_buffer("bias", torch.tril(torch.ones(1024, 1024)))
    def forward(self, x):
        n = x.shape[1]
        s = self.q(x) @ self.k(x).transpose(-2, -1) / W**0.5
        s = s.masked_fill(self.bias[:n, :n] == 0, float("-inf"))
        return self.o(s.softmax(-1) @ self.v(x))

class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.out = nn.Embedding(V, W), nn.Linear(W, V)
        self.k = nn.ModuleList(nn.ModuleList([nn.LayerNorm(W), Masked(), nn.LayerNorm(W), Two()]) for _ in range(2))
    def forward(self, input_ids):
        x = self.t(input_ids)
        for a, f, b, g in self.k:
            x = x + f(a(x))
            x = x + g(b(x))
        return self.out(x)

def pair(source, *, device, dtype):
    return Pair().to(device, dtype)

def one(source, *, device, dtype):
    return One().to(device, dtype)

def t5(source, *, device, dtype):
    from transformers import AutoModelForSeq2SeqLM
    return AutoModelForSeq2SeqLM.from_pretrained(source, dtype=dtype, attn_implementation="eager")

class Traced:
    def trace(self, input_ids, attention_mask):
        return {}

def traced(source, *, device, dtype):
    return Traced()

def reads(source, *, device, dtype):
    """Its code looks at a weight that is large enough to be left out."""
    made = One().to(device, dtype)
    made.spare = nn.Linear(1024, 1024)
    assert made.spare.weight.sum().item() != 1
    return made

def wide(source, *, device, dtype):
    from transformers import LlamaConfig, LlamaForCausalLM
    given = dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=4, num_attention_heads=64)
    config = LlamaConfig(**given, num_key_value_heads=8, vocab_size=128256, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    return LlamaForCausalLM._from_config(config, dtype=dtype)
'''


@pytest.fixture
def user(tmp_path: Path) -> str:
    path = tmp_path / "kinds.py"
    path.write_text(USER, encoding="utf-8")
    return str(path)


def _said(candidate: str) -> dict[str, object]:
    report = pipeline.inspect(None, level="graph", candidate=candidate)
    # Weights that no operator reads are a note, and no reason against the module.
    assert (report.verdict, {f.name for f in report.findings} - {"parameter-unconsumed"}) == ("accepted", set())
    return {r.field: r.value("executed") for r in report.contract}


def test_an_encoder_decoder_has_two_stacks(user: str) -> None:
    said = _said(f"{user}:pair")
    assert said["encoder.branch_order"] == ["self_attention", "mlp"]
    assert said["decoder.branch_order"] == ["causal_self_attention", "cross_attention", "mlp"]
    assert said["encoder.final_norm.present"] is False
    assert said["decoder.final_norm.present"] is True
    assert said["decoder.cross_attention.norm_in.epsilon"] == 1e-5


def test_a_mask_that_is_a_large_buffer_is_a_mask(user: str) -> None:
    assert _said(f"{user}:one")["decoder.branch_order"] == ["causal_self_attention", "mlp"]


def test_code_that_looks_at_its_weights_gets_them(user: str) -> None:
    assert _said(f"{user}:reads")["decoder.branch_order"] == ["causal_self_attention", "mlp"]


def test_a_model_of_transformers_with_two_stacks(user: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    models.build("t5").save_pretrained(folder)
    report = pipeline.inspect(folder, level="graph", candidate=f"{user}:t5")
    assert (report.verdict, [f.name for f in report.findings]) == ("accepted", [])


def test_what_only_traces_has_no_operators(user: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "--level", "graph", "--candidate", f"{user}:traced"]) == 2
    said = capfd.readouterr().err.strip()
    assert "no operators to read" in said
    assert "blockaudit conform" in said
    assert len(said.splitlines()) == 1


LIMIT = """
import sys
from blockaudit import inspect
from tests.support.memory import peak
report = inspect(None, level="graph", candidate=sys.argv[1])
assert report.verdict == "accepted", report
print(peak())
"""


@pytest.mark.skipif(not peak(), reason="the system does not say what a process took")
def test_a_candidate_of_real_width_needs_no_memory_for_its_weights(user: str) -> None:
    """Seven billion weights, built twice."""
    done = subprocess.run([sys.executable, "-c", LIMIT, f"{user}:wide"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 2**30
