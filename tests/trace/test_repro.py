"""`--repro`: the first divergence cut out, and a script that shows it with torch and safetensors alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file

from blockaudit.cli.main import run as command
from blockaudit.errors import RequestError, UnwrittenError
from blockaudit.pipeline.conform import conform
from blockaudit.records.norm_spec import NormSpec
from blockaudit.records.report import Report
from blockaudit.reference import norms
from blockaudit.trace.repro import folder as folders
from blockaudit.trace.repro import script as scripts
from tests.families import models

USER = """
import types
import torch
from transformers import AutoModelForCausalLM

def clean(source, *, device, dtype):
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").to(device).eval()

def epsilon(source, **options):
    model = clean(source, **options)
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-2
    return model

def narrow(source, **options):
    model = clean(source, **options)
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
    norm = model.model.layers[1].post_attention_layernorm
    norm.forward = types.MethodType(forward, norm)
    return model

def attention(source, **options):
    model = clean(source, **options)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight[3] *= 1.01
    return model

def scaled(source, **options):
    model = clean(source, **options)
    mlp = model.model.layers[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: 1.001 * own(x)
    return model

def head(source, **options):
    model = clean(source, **options)
    with torch.no_grad():
        model.lm_head.weight[3] *= 1.01
    return model
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repro")
    models.build("llama", num_hidden_layers=2).save_pretrained(folder / "llama")
    (folder / "user.py").write_text(USER, encoding="utf-8")
    return folder


def run(folder: Path, name: str, into: Path, **asked: Any) -> Report:
    given = {"device": "cpu", "dtype": "float32", "batch": 2, "seq_len": 8, "mode": "local", **asked}
    return conform(folder / "llama", candidate=f"{folder / 'user.py'}:{name}", repro=into, **given)


def shown(into: Path) -> tuple[int, str]:
    """The script in a process of its own, away from the checkout."""
    argv = [sys.executable, "-I", str(into / "repro.py")]
    done = subprocess.run(argv, cwd=into.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


CASES = {
    "epsilon": ("layers.1.self_attention.norm_in", "weight", True),
    "attention": ("layers.0.self_attention.branch", "model.layers.0.self_attn.o_proj.weight", False),
    "scaled": ("layers.1.mlp.update", None, True),
    "head": ("logits", None, False),
}


@pytest.mark.parametrize("name", CASES)
def test_the_script_shows_what_the_report_says(folder: Path, tmp_path: Path, name: str) -> None:
    site, weight, formula = CASES[name]
    into = tmp_path / "out"
    report = run(folder, name, into)
    assert report.conformance is not None
    first = report.conformance.first
    assert first is not None
    assert first.site == site
    status, printed = shown(into)
    assert status == 1
    last = printed.splitlines()[-1]
    assert last.startswith(first.metric)
    assert last.endswith(f"{first.tolerance:.6g} is allowed")
    # One row shows at least as much as all of them together.
    assert float(last.split()[1].rstrip(",")) >= first.observed * (1 - 1e-5)
    tensors = load_file(into / "repro.safetensors")
    assert tensors["observed"].shape == tensors["expected"].shape
    assert weight is None or weight in tensors
    script = (into / "repro.py").read_text()
    assert formula != ('expected = t["expected"]' in script)
    assert site in (into / "README.md").read_text()
    assert sorted(p.name for p in into.iterdir()) == ["README.md", "repro.py", "repro.safetensors"]
    assert len(script.splitlines()) < 32


def test_bits_are_recomputed_as_the_release_rounds_them(folder: Path, tmp_path: Path) -> None:
    into = tmp_path / "out"
    report = run(folder, "narrow", into, dtype="bfloat16")
    assert report.conformance is not None
    assert report.conformance.first is not None
    assert report.conformance.first.metric == "bits"
    status, printed = shown(into)
    assert (status, printed.splitlines()[-1].startswith("bits ")) == (1, True)
    assert 'expected = t["expected"]' not in (into / "repro.py").read_text()


def test_without_a_divergence_nothing_is_written_and_the_report_says_so(folder: Path, tmp_path: Path) -> None:
    into = tmp_path / "out"
    report = run(folder, "clean", into)
    assert report.verdict == "accepted"
    assert report.conformance is not None
    assert "--repro: nothing to write, for nothing differs" in report.conformance.silent
    assert not into.exists()


def test_a_folder_with_anything_else_in_it_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    status = command(["conform", "fixtures/tiny_llama", "--repro", str(tmp_path)])
    lines = capsys.readouterr().err.splitlines()
    assert (status, len(lines)) == (2, 1)
    assert "is not empty and holds no earlier repro (mine.txt)" in lines[0]
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("inside", ["fixtures/tiny_llama", "fixtures/tiny_llama/repro"])
def test_nothing_is_written_in_the_source(inside: str) -> None:
    assert command(["conform", "fixtures/tiny_llama", "--repro", inside]) == 2


def test_modes_that_compare_no_operator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="needs local comparisons"):
        conform("fixtures/tiny_llama", mode="layer", repro=tmp_path / "out")


def test_an_earlier_repro_is_replaced_and_a_readme_alone_is_not_one(tmp_path: Path) -> None:
    into = tmp_path / "out"
    script = scripts.script("a", scripts.stored(), "max_abs", 1.0)
    folders.write(into, {folders.SCRIPT: script.encode(), folders.README: b"old"})
    folders.check(into)
    folders.write(into, {folders.SCRIPT: script.encode(), folders.README: b"new"})
    assert (into / folders.README).read_bytes() == b"new"
    assert sorted(p.name for p in into.iterdir()) == ["README.md", "repro.py"]
    (into / folders.SCRIPT).unlink()
    with pytest.raises(RequestError, match="not empty"):
        folders.check(into)
    with pytest.raises(RequestError, match="is not there"):
        folders.check(tmp_path / "no" / "such")


def test_a_full_disk_leaves_nothing_behind_and_the_report_is_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    into = tmp_path / "out"
    with pytest.raises(UnwrittenError, match=r"cannot write --repro .*: No space left on device") as raised:
        run(folder, "epsilon", into)
    assert raised.value.report.verdict == "rejected"
    assert list(tmp_path.iterdir()) == []


SPECS = [
    NormSpec("rmsnorm", 1e-6),
    NormSpec("rmsnorm", 1e-3, "outside", scale_offset=1.0),
    NormSpec("layernorm", 1e-5, bias=True),
    NormSpec("layernorm", 1e-5, variance_correction=1, scale="none"),
    NormSpec("layernorm_std_eps", 1e-6, variance_correction=1, bias=True),
    NormSpec("scalenorm", 1e-5, scale="scalar"),
    NormSpec("prmsnorm", 1e-6, subset=3),
    NormSpec("groupnorm", 1e-5, groups=4, bias=True),
    NormSpec("dyt", bias=True),
    NormSpec("none", scale="none"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.family}-{s.epsilon_location}-{s.variance_correction}")
def test_the_lines_of_a_script_are_the_formula(spec: NormSpec) -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(1, 16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    weight = torch.randn(1 if spec.scale == "scalar" else 16, dtype=torch.float64)
    state = {"alpha": torch.tensor(0.7, dtype=torch.float64)} if spec.family == "dyt" else {}
    t = {"x": x, "weight": weight, "bias": bias, **state}
    lines = scripts.norm(spec, frozenset(t), "torch.float64")
    assert lines is not None
    space: dict[str, Any] = {"torch": torch, "t": t}
    exec("\n".join(lines), space)
    torch.testing.assert_close(space["expected"], norms.apply(spec, x, weight, bias, state or None))


def test_a_norm_of_whole_batches_has_no_lines() -> None:
    assert scripts.norm(NormSpec("batchnorm", 1e-5, axes=(0, 1)), frozenset({"weight"}), "torch.float64") is None
