"""Candidates and references that were recorded, through `conform`: trace files, `trace()` objects, other runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor

from blockaudit import pipeline
from blockaudit.errors import RequestError
from blockaudit.records.bound import BoundManifest
from blockaudit.records.report import Report
from blockaudit.records.trace_file import TOKENS, TraceMetadata
from blockaudit.trace.files.read import TraceFile
from blockaudit.trace.files.write import write
from tests.families import models

USER = Path(__file__).with_name("recorded_candidates.py")
SIZE: dict[str, Any] = {"device": "cpu", "batch": 2, "seq_len": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    models.build("llama").save_pretrained(folder / "llama")
    models.build("t5").save_pretrained(folder / "t5")
    return folder


@pytest.fixture(scope="module")
def record(folder: Path) -> Callable[..., Path]:
    """A trace of `NAME` of the user's file (or `hf`) in a dtype, recorded once."""

    def make(name: str, dtype: str = "float32", family: str = "llama") -> Path:
        path = folder / f"{family}-{name}-{dtype}.safetensors"
        if not path.exists():
            candidate = name if name == "hf" else f"{USER}:{name}"
            pipeline.record_trace(folder / family, out=path, candidate=candidate, dtype=dtype, **SIZE)
        return path

    return make


def conform(source: Path, **options: Any) -> Report:
    return pipeline.conform(source, **{**SIZE, **options})


def spoil(path: Path, to: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], **said: str) -> Path:
    """The trace with other tensors, or other metadata."""
    with TraceFile.open(path) as file:
        tensors = {name: file.tensor(name) for name in (*file.sites, *file.tokens())}
        known = {f: getattr(file.metadata, f) for f in ("manifest_sha256", "dtype_policy", "tokens_sha256", "mode")}
    write(to, change(tensors), TraceMetadata(**(known | said)))
    return to


Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Tensors]


def kept(*ends: str) -> Change:
    """The tokens, and the sites that end so."""
    return lambda tensors: {k: v for k, v in tensors.items() if k in TOKENS or k.endswith(ends)}


def without_tokens(tensors: Tensors) -> Tensors:
    return {k: v for k, v in tensors.items() if k not in TOKENS}


def with_ids(ids: Tensor) -> Change:
    return lambda tensors: {**tensors, "input_ids": ids}


def narrowed(tensors: Tensors) -> Tensors:
    return {**tensors, "layers.1.state": tensors["layers.1.state"][..., :8]}


def of_another_stack(tensors: Tensors) -> Tensors:
    return {f"decoder.{k}" if k.startswith("layers.") else k: v for k, v in tensors.items() if "." in k or k in TOKENS}


def failing(report: Report) -> list[str]:
    assert report.conformance is not None
    return [s.site for s in report.conformance.sites if s.passed is False]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_recorded_trace_of_a_clean_candidate_is_accepted(
    folder: Path, record: Callable[..., Path], dtype: str
) -> None:
    report = conform(folder / "llama", candidate=str(record("hf", dtype)))
    run = report.conformance
    assert run is not None
    assert (report.verdict, report.findings) == ("accepted", ())
    assert (run.recorded, run.dtype, run.depth, run.missing, run.unexpected) == (True, dtype, "full", (), ())
    assert {s.mode for s in run.sites} == {"local", "end-to-end"}
    assert {s.dtype for s in run.sites} == {dtype}
    assert "layer: a recorded trace cannot be run on the reference's states" in run.silent


def test_what_conform_writes_conforms(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    first = conform(folder / "t5", trace_out=out, dtype="bfloat16")
    again = conform(folder / "t5", candidate=str(out))
    assert first.verdict == "accepted"
    assert again.conformance is not None
    assert not failing(again)
    assert again.conformance.missing == ()
    assert {s.site for s in again.conformance.sites if s.passed} >= {"encoder.final_norm", "logits"}
    with TraceFile.open(out) as file:
        assert first.manifest is not None
        assert file.metadata.manifest_sha256 == first.manifest.sha256
        assert (file.metadata.dtype_policy, file.metadata.mode) == ("bfloat16", "end-to-end")
        assert set(file.tokens()) == {"input_ids", "attention_mask", "decoder_input_ids"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_recorded_epsilon_is_found_and_named_or_left_open(
    folder: Path, record: Callable[..., Path], dtype: str
) -> None:
    report = conform(folder / "llama", candidate=str(record("epsilon", dtype)))
    run = report.conformance
    assert run is not None
    assert run.first is not None
    assert (report.verdict, run.first.site) == ("rejected", "layers.1.self_attention.norm_in")
    assert {s.site for s in run.sites if s.passed is False and s.mode == "local"} == {run.first.site}
    (said,) = [i for i in run.identified if i.field.endswith("self_attention.norm_in.epsilon") and i.layers == "1"]
    assert said.interval is not None
    assert said.interval[0] <= 1e-5 <= said.interval[1]
    assert said.value in (1e-5, None)
    assert {f.name for f in report.findings if f.severity == "error"} >= {"trace-divergence"}


def test_a_recorded_doubled_shortcut_is_seen_at_the_shortcut(folder: Path, record: Callable[..., Path]) -> None:
    run = conform(folder / "llama", candidate=str(record("doubled"))).conformance
    assert run is not None
    assert run.first is not None
    assert (run.first.site, run.first.mode) == ("layers.1.self_attention.residual", "local")
    assert [(d.field, d.layers, d.value) for d in run.diagnosis] == [("decoder.residual.shortcut_scale", "1", 2.0)]
    assert {s.site for s in run.sites if s.passed is False and s.mode == "local"} == {run.first.site}


def test_sites_that_a_trace_lacks_leave_it_unverified(
    folder: Path, record: Callable[..., Path], tmp_path: Path
) -> None:
    """Of what a fused runtime shows, all is compared, the shortcuts too."""
    shown = ("norm_in", "branch", "residual", "embed", "final_norm", "logits", "layers.2.state")
    for name, first in (("hf", None), ("doubled", "layers.1.self_attention.residual")):
        path = spoil(record(name), tmp_path / "fused.safetensors", kept(*shown))
        report = conform(folder / "llama", candidate=str(path))
        run = report.conformance
        assert run is not None
        assert (run.first.site if run.first else None) == first
        assert report.verdict == ("unverified" if first is None else "rejected")
        assert {f.name for f in report.findings if f.severity == "warning"} >= {"site-missing"}
        assert "layers.0.mlp.sum" in run.missing
        assert "layers.0.mlp.norm_in" not in run.missing
        local = {s.site for s in run.sites if s.mode == "local"}
        assert {"layers.1.mlp.residual", "layers.2.self_attention.norm_in", "layers.1.mlp.branch"} <= local


def test_norms_alone_can_be_compared(folder: Path, record: Callable[..., Path], tmp_path: Path) -> None:
    path = spoil(record("hf"), tmp_path / "norms.safetensors", kept("norm_in"))
    run = conform(folder / "llama", candidate=str(path)).conformance
    assert run is not None
    assert {(s.mode, s.passed) for s in run.sites} == {("end-to-end", True)}
    assert {"embed", "final_norm", "logits"} <= set(run.missing)


def test_what_no_manifest_has_is_said(folder: Path, record: Callable[..., Path], tmp_path: Path) -> None:
    path = spoil(
        record("hf"), tmp_path / "more.safetensors", lambda t: {**t, "layers.7.state": t["layers.0.state"]},
        manifest_sha256="ab" * 32,
    )  # fmt: skip
    run = conform(folder / "llama", candidate=str(path), dtype="bfloat16").conformance
    assert run is not None
    assert run.unexpected == ("layers.7.state",)
    assert any("recorded for another manifest" in said for said in run.silent)
    assert "--dtype bfloat16: the trace is of a run in float32, and is judged so" in run.silent
    assert not any(s.passed is False for s in run.sites)


OTHER = torch.ones(2, 8, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "said", "options"),
    [
        (with_ids(OTHER), "its tokens are not those whose hash its metadata gives", {}),
        (with_ids(OTHER * 96), "input_ids holds 96, and there are 96 token ids", {"hash": ""}),
        (without_tokens, "recorded on other tokens", {"seed": 1}),
        (narrowed, "layers.1.state: shape [2, 8, 8], and d_model is 32", {}),
        (of_another_stack, "no site of the stack decoder in it", {}),
        (dict[str, Tensor], "a recorded trace cannot be run on the reference's states", {"mode": "layer"}),
    ],
    ids=["another hash", "no such token", "other tokens", "another width", "another stack", "a mode"],
)  # fmt: skip
def test_a_trace_that_does_not_fit_is_one_line(
    folder: Path, record: Callable[..., Path], tmp_path: Path, change: Any, said: str, options: dict[str, Any]
) -> None:
    more = {"tokens_sha256": options.pop("hash")} if "hash" in options else {}
    path = spoil(record("hf"), tmp_path / "odd.safetensors", change, **more)
    with pytest.raises(RequestError) as refusal:
        conform(folder / "llama", candidate=str(path), **options)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_corrupt_trace_is_one_line(folder: Path, record: Callable[..., Path], tmp_path: Path) -> None:
    whole = record("hf").read_bytes()
    for data in (whole[:-100], b"no trace at all", b""):
        path = tmp_path / "corrupt.safetensors"
        path.write_bytes(data)
        with pytest.raises(RequestError, match=r"corrupt\.safetensors") as refusal:
            conform(folder / "llama", candidate=str(path))
        assert "\n" not in str(refusal.value)


def test_an_object_with_trace_is_run_on_every_batch(folder: Path) -> None:
    report = conform(folder / "llama", candidate=f"{USER}:traced", dtype="bfloat16")
    run = report.conformance
    assert run is not None
    assert not failing(report)
    assert {s.dtype for s in run.sites} == {"float32", "bfloat16"}
    assert report.verdict == "unverified"  # the sums are not among its sites
    assert "layers.0.mlp.sum" in run.missing


def test_an_object_with_trace_is_judged(folder: Path) -> None:
    run = conform(folder / "llama", candidate=f"{USER}:traced_epsilon").conformance
    assert run is not None
    assert run.first is not None
    assert run.first.site == "layers.1.self_attention.norm_in"
    assert (run.diagnosis[0].field, run.diagnosis[0].layers) == ("decoder.self_attention.norm_in.epsilon", "1")
    assert run.diagnosis[0].value == 1e-5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken_code", "trace(): ValueError: no such kernel"),
        ("short", "final_norm: shape [2, 7, 32], and the tokens are [2, 8]"),
        ("narrow", "final_norm: shape [2, 8, 31], and d_model is 32"),
        ("unnamed", "'layers.0.mlp.norm', which is no trace site"),
        ("nothing", "trace() returned NoneType, not a dict of tensors"),
        ("empty", "trace() gave no site"),
        ("no_tensor", "trace() gave list for embed, not a tensor"),
        ("no_floats", "embed: expected floats of shape [B, S, D], found int64 of shape [2, 8, 32]"),
    ],
)
def test_an_object_that_gives_no_trace_is_one_line(folder: Path, name: str, said: str) -> None:
    with pytest.raises(RequestError) as refusal:
        conform(folder / "llama", candidate=f"{USER}:{name}")
    assert str(refusal.value).startswith(f"--candidate {USER}:{name}: ")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_class_as_reference(folder: Path) -> None:
    report = conform(folder / "llama", candidate=f"{USER}:epsilon", reference="hf", dtype="bfloat16")
    run = report.conformance
    assert run is not None
    assert run.first is not None
    assert {s.mode for s in run.sites} == {"layer", "end-to-end"}
    assert run.first.site == "layers.1.self_attention.norm_in"
    assert (run.depth, run.depth_reason.partition(",")[0]) == ("full", "LlamaForCausalLM")
    assert any(said.startswith("local: a reference that is a class") for said in run.silent)
    assert run.explained is None
    clean = conform(folder / "llama", reference="hf", dtype="bfloat16")
    assert (clean.verdict, failing(clean)) == ("accepted", [])


def test_a_trace_as_reference(folder: Path, record: Callable[..., Path]) -> None:
    low = conform(folder / "llama", reference=str(record("hf", "float32")), dtype="bfloat16")
    assert (low.verdict, failing(low)) == ("accepted", [])
    assert low.conformance is not None
    assert {(s.mode, s.dtype, s.floor) for s in low.conformance.sites} == {("end-to-end", "bfloat16", None)}
    other = conform(folder / "llama", reference=str(record("doubled")))
    assert failing(other)[0] == "layers.1.self_attention.residual"
    both = conform(folder / "llama", candidate=str(record("hf")), reference=str(record("doubled")))
    assert failing(both)[0] == "layers.1.self_attention.residual"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reference": "nobody"}, "unknown --reference 'nobody'"),
        ({"reference": "none.safetensors"}, "none.safetensors"),
        ({"reference": "hf", "mode": "local"}, "is not run on the candidate's own inputs"),
    ],
)
def test_a_reference_that_cannot_be_had_is_one_line(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as refusal:
        conform(folder / "llama", **options)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_that_is_not_there_is_said_before_the_work(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot write trace"):
        conform(folder / "llama", trace_out=tmp_path / "none" / "out.safetensors")


def test_under_a_wrapper_reference_a_trace_is_compared_without_its_branches(
    folder: Path, record: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockaudit.reference.decoder import FullReference

    def refusal(bound: BoundManifest) -> str:
        return "no such attention"

    monkeypatch.setattr(FullReference, "refusal", staticmethod(refusal))
    run = conform(folder / "llama", candidate=str(record("doubled"))).conformance
    assert run is not None
    assert run.first is not None
    assert (run.depth, run.depth_reason, run.first.site) == (
        "wrapper", "no such attention", "layers.1.self_attention.residual",
    )  # fmt: skip
    assert {s.mode for s in run.sites} == {"local"}
    branches = {s.site: s.passed for s in run.sites if s.site.endswith((".branch", "embed", "logits"))}
    assert len(branches) == 8
    assert set(branches.values()) == {None}
    assert any(said.startswith("end-to-end: the manifest has no full reference") for said in run.silent)
    with pytest.raises(RequestError, match="no full reference"):
        conform(folder / "llama", candidate=str(record("hf")), mode="end-to-end")
