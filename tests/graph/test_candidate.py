"""`inspect --level graph --candidate FILE.py:NAME`: a user's own module is what is run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit import pipeline
from blockaudit.cli.main import run
from blockaudit.errors import RequestError
from tests.families import models

USER = """
import torch
from tests.graph import modules

def good(source, *, device, dtype):
    assert source is None
    return modules.models().to(device, dtype)

def odd(source, *, device, dtype):
    return modules.models(modules.squared).to(device, dtype)

def llama(source, *, device, dtype):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager")

def other(source, **options):
    model = llama(source, **options)
    for layer in model.model.layers:
        layer.input_layernorm.variance_epsilon = 1e-3
    return model

def fails(source, *, device, dtype):
    raise ValueError("first line\\nsecond line")

def nothing(source, *, device, dtype):
    return None
"""


@pytest.fixture
def user(tmp_path: Path) -> str:
    path = tmp_path / "user.py"
    path.write_text(USER, encoding="utf-8")
    return str(path)


def test_without_a_source_the_contract_is_what_is_executed(user: str) -> None:
    report = pipeline.inspect(None, level="graph", candidate=f"{user}:good")
    assert (report.verdict, report.manifest) == ("accepted", None)
    # A Net has parts for every step, and a step leaves some of them out.
    assert {f.name for f in report.findings} == {"parameter-unconsumed"}
    assert {w for row in report.contract for w in row.statements} == {"executed"}
    said = {row.field: row.value("executed") for row in report.contract}
    assert said["decoder.self_attention.norm_in.epsilon"] == 1e-5
    assert said["decoder.mlp.norm_in.placement"] == "pre_branch"
    assert said["decoder.branch_order"] == ["causal_self_attention", "mlp"]
    assert said["decoder.final_norm.present"] is True


def test_what_cannot_be_read_leaves_the_audit_unverified(user: str) -> None:
    report = pipeline.inspect(None, level="graph", candidate=f"{user}:odd")
    named = {f.name for f in report.findings if f.severity != "note"}
    assert (report.verdict, named) == ("unverified", {"graph-unclassified"})


@pytest.mark.parametrize(("name", "verdict"), [("llama", "accepted"), ("other", "rejected")])
def test_with_a_source_it_replaces_the_class(user: str, name: str, verdict: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    models.build("llama").save_pretrained(folder)
    report = pipeline.inspect(folder, level="graph", candidate=f"{user}:{name}")
    wrong = {(f.name, f.subject) for f in report.findings}
    expected = {("epsilon-mismatch", "decoder.self_attention.norm_in")} if verdict == "rejected" else set()
    assert (report.verdict, wrong) == (verdict, expected)


@pytest.mark.parametrize(
    ("name", "says"),
    [("fails", "ValueError: first line"), ("nothing", "not a torch.nn.Module"), ("absent", "no callable 'absent'")],
)
def test_a_fault_of_the_user_is_one_line(user: str, name: str, says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "--level", "graph", "--candidate", f"{user}:{name}"]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert len(shown.err.strip().splitlines()) == 1


def test_what_asks_for_nothing_is_refused(user: str) -> None:
    assert run(["inspect"]) == 2
    for level, candidate in (("headers", f"{user}:good"), ("graph", None), ("graph", "user"), ("graph", "none.py:x")):
        with pytest.raises(RequestError):
            pipeline.inspect(None, level=level, candidate=candidate)
