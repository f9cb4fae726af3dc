"""Candidates that fail: each ends in a report that says so, with the right verdict, and never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit import pipeline
from tests.trace.clean import checkpoint

CANDIDATES = """
import torch
from transformers import AutoModelForCausalLM

def load(source, device, dtype):
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").to(device).eval()

def raises_when_built(source, *, device, dtype):
    raise ValueError("no such thing")

def raises_when_run(source, *, device, dtype):
    model = load(source, device, dtype)
    def forward(*args, **kwargs):
        raise KeyError("boom")
    model.forward = forward
    return model

def raises_in_bfloat16(source, *, device, dtype):
    if dtype == torch.bfloat16:
        raise RuntimeError("no kernel for bfloat16")
    return load(source, device, dtype)

def leaves(source, *, device, dtype):
    raise SystemExit(0)

def gives_nan(source, *, device, dtype):
    model = load(source, device, dtype)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    return model

def writes_into_its_inputs(source, *, device, dtype):
    model = load(source, device, dtype)
    inner = model.model.forward
    def forward(input_ids=None, **kwargs):
        input_ids.clamp_(max=50)
        return inner(input_ids=input_ids, **kwargs)
    model.model.forward = forward
    return model

class Short(torch.nn.Module):
    def forward(self, input_ids, attention_mask=None):
        return torch.zeros(2, 3)

def gives_no_states(source, *, device, dtype):
    return Short()

def skips_a_norm(source, *, device, dtype):
    model = load(source, device, dtype)
    model.model.layers[1].post_attention_layernorm = torch.nn.Identity()
    return model
"""
# What is run, the verdict, the findings that must be there, and what one of them says.
CASES = {
    "raises_when_built": ("rejected", {"site-missing"}, "the candidate raised"),
    "raises_when_run": ("rejected", {"site-missing"}, "KeyError: 'boom'"),
    "raises_in_bfloat16": ("rejected", {"site-missing"}, "no kernel for bfloat16"),
    "leaves": ("rejected", {"site-missing"}, "SystemExit"),
    "gives_nan": ("rejected", {"trace-divergence", "trace-non-finite"}, "layers.1.mlp.branch"),
    "writes_into_its_inputs": ("rejected", {"inputs-changed"}, "changed input_ids"),
    "gives_no_states": ("unverified", {"graph-unclassified"}, "no value that leaves the stack"),
    "skips_a_norm": ("rejected", {"trace-divergence", "site-missing", "norm-missing"}, "layers.1.mlp"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failing")
    (folder / "candidates.py").write_text(CANDIDATES)
    return checkpoint(folder / "model", "llama")


@pytest.mark.parametrize("name", CASES)
def test_a_failing_candidate_ends_in_a_report(model: Path, name: str) -> None:
    verdict, rules, says = CASES[name]
    dtype = "bfloat16" if name == "raises_in_bfloat16" else "float32"
    report = pipeline.conform(model, candidate=f"{model.parent}/candidates.py:{name}", dtype=dtype, seq_len=16)
    told = {f.name: f"{f.subject} {f.message}" for f in report.findings if f.severity != "note"}
    assert rules <= told.keys()
    assert report.verdict == verdict
    assert any(says in text for text in told.values()), told
    assert report.conformance is not None
