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

class Base(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise ValueError

class Says(torch.nn.Module):
    # A small model, whose logits something is done to.
    def __init__(self, do):
        super().__init__()
        self.inner, self.do = modules.models(), do
    def forward(self, input_ids):
        return self.do(self.inner(input_ids))

def saying(do):
    return lambda source, *, device, dtype: Says(do).to(device, dtype)

def throws(error):
    def do(logits):
        raise error
    return saying(do)

base, ends, mute = throws(Base("said")), throws(SystemExit(3)), throws(Mute())
empty, words, none = saying(lambda y: {}), saying(lambda y: ["a"]), saying(lambda y: None)
half, capped, last = saying(lambda y: y * 0.5), saying(lambda y: 30 * torch.tanh(y / 30)), saying(lambda y: y[:, -1])
shifted = saying(lambda y: y + 1)
negative, squared, below = saying(lambda y: -y), saying(lambda y: y**2), saying(lambda y: 4 / y)
chosen, logs, cap_of_other = (
    saying(lambda y: y.argmax(-1)), saying(lambda y: y.log_softmax(-1)), saying(lambda y: 15 * torch.tanh(y / 30))
)

def most(source, **options):
    # All layers but the first have another epsilon.
    model = llama(source, **options)
    for layer in model.model.layers[1:]:
        layer.input_layernorm.variance_epsilon = 1e-3
    return model

class Scaled(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.g = inner, torch.nn.Parameter(torch.ones(32))
    def forward(self, x):
        return self.inner(x) * self.g

def learned(source, *, device, dtype):
    model = llama(source, device=device, dtype=dtype)
    model.model.layers[1].mlp = Scaled(model.model.layers[1].mlp)
    return model.to(dtype)

class Crossed(torch.nn.Module):
    # Attention whose first axis it takes for positions: examples see each other.
    def __init__(self):
        super().__init__()
        make = torch.nn.TransformerEncoderLayer
        self.t, self.o, self.l = torch.nn.Embedding(31, 12), torch.nn.Linear(12, 31), torch.nn.LayerNorm(12)
        self.k = torch.nn.ModuleList(make(12, 3, 24, batch_first=False, norm_first=True) for _ in range(2))
    def forward(self, input_ids):
        x = self.t(input_ids)
        for k in self.k:
            x = k(x)
        return self.o(self.l(x))

def crossed(source, *, device, dtype):
    return Crossed().to(device, dtype)

class Narrow(torch.nn.Module):
    # Squares before it widens.
    def __init__(self):
        super().__init__()
        self.g = torch.nn.Parameter(torch.ones(32))
    def forward(self, x):
        return (x * torch.rsqrt(x.pow(2).float().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.g

def narrow(source, *, device, dtype):
    model = llama(source, device=device, dtype=dtype)
    for layer in model.model.layers:
        layer.input_layernorm = Narrow()
    return model.to(dtype)
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
    [
        ("fails", "ValueError: first line"),
        ("nothing", "not a torch.nn.Module"),
        ("absent", "no callable 'absent'"),
        ("base", "Base: said"),
        ("ends", "SystemExit: 3"),
        ("mute", "Mute"),
        ("empty", "forward returned dict"),
        ("words", "forward returned list"),
        ("none", "forward returned NoneType"),
    ],
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


@pytest.mark.parametrize(
    ("name", "scale", "cap"),
    [("half", 0.5, None), ("capped", 1.0, 30.0), ("last", 1.0, None), ("shifted", 1.0, None)],
)
def test_what_is_done_to_the_logits(user: str, name: str, scale: float, cap: float | None) -> None:
    report = pipeline.inspect(None, level="graph", candidate=f"{user}:{name}")
    said = {row.field: row.value("executed") for row in report.contract}
    assert (report.verdict, said["logits.scale"], said["logits.softcap"]) == ("accepted", scale, cap)


@pytest.mark.parametrize("name", ["negative", "squared", "below", "chosen", "logs", "cap_of_other"])
def test_logits_that_replay_does_not_confirm_are_unclassified(user: str, name: str) -> None:
    report = pipeline.inspect(None, level="graph", candidate=f"{user}:{name}")
    assert report.verdict == "unverified"
    assert "graph-unclassified" in {f.name for f in report.findings}
    assert not any(row.field.startswith("logits.") for row in report.contract)


def test_attention_over_examples_is_none(user: str) -> None:
    report = pipeline.inspect(None, level="graph", candidate=f"{user}:crossed")
    assert "self_attention" not in {row.value("executed") for row in report.contract if row.field.endswith(".kind")}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("most", "epsilon-mismatch"), ("learned", "graph-unclassified"), ("narrow", "norm-work-dtype-mismatch")],
)
def test_a_part_of_the_layers_that_differs_is_seen(user: str, name: str, wrong: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    models.build("llama").save_pretrained(folder)
    report = pipeline.inspect(folder, level="graph", candidate=f"{user}:{name}")
    assert report.verdict != "accepted"
    assert wrong in {f.name for f in report.findings}
