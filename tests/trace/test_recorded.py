"""Recorded values: what of a layer can be held to its own inputs, and which tokens and dtype a trace is of."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.records.norm_spec import NormSpec
from blockaudit.records.trace_file import TraceMetadata
from blockaudit.reference.assembly import Block, BranchPlan, NormSite, names
from blockaudit.trace.diagnosis.edits_sums import factor_of
from blockaudit.trace.files.known import Known
from blockaudit.trace.files.read import TraceFile
from blockaudit.trace.files.sources import Held, dtype_of, tokens_of
from blockaudit.trace.files.write import write
from blockaudit.trace.tokens import digest

NORM = NormSite("decoder.norm", NormSpec("rmsnorm", 1e-6, "inside", 0, False, "per_channel", 0.0, False), "w", None)


def part(name: str, *sites: str, **other: float) -> BranchPlan:
    norms = dict.fromkeys(sites, NORM)
    return BranchPlan(f"decoder.{name}", name, "dense", "state", norms, 1.0, other.get("shortcut_scale", 1.0))


def block(*parts: BranchPlan, parallel: bool = False) -> Block:
    return Block("decoder", 0, parts, parallel, False)


PRE = block(part("self_attention", "norm_in"), part("mlp", "norm_in"))
POST = block(part("self_attention", "norm_post"), part("mlp", "norm_post"))
A, M = "self_attention", "mlp"


def test_of_a_whole_layer_every_site_is_judged() -> None:
    for plan in (PRE, POST, block(part(A, "norm_in", "norm_out"), part(M), parallel=True)):
        assert Known(plan, names(plan), enter=True, shortcut=True).judged() >= set(names(plan))


def test_what_a_fused_runtime_shows_is_enough_for_its_norms_and_adds() -> None:
    """Of vLLM: the norm's output, the sum that it normalised, and the branch."""
    shown = [f"{b}.{s}" for b in (A, M) for s in ("residual", "norm_in", "branch")]
    judged = Known(PRE, shown, enter=True, shortcut=True).judged()
    assert set(shown) <= judged


def test_where_no_state_enters_the_first_shortcut_stands_for_it_and_is_not_judged_itself() -> None:
    shown = [f"{b}.{s}" for b in (A, M) for s in ("residual", "norm_in", "branch")]
    judged = Known(PRE, shown, enter=False, shortcut=True).judged()
    assert set(shown) - judged == {f"{A}.residual"}
    assert f"{A}.norm_in" not in Known(PRE, shown[1:], enter=False, shortcut=False).judged()


def test_a_shortcut_that_is_scaled_is_not_the_state() -> None:
    plan = block(part(A, "norm_in"), part(M, "norm_in", shortcut_scale=2.0))
    judged = Known(plan, [f"{M}.residual", f"{M}.norm_in"], enter=True, shortcut=False).judged()
    assert f"{M}.norm_in" not in judged


def test_norms_alone_say_nothing_of_sums() -> None:
    judged = Known(PRE, [f"{A}.norm_in", f"{M}.norm_in"], enter=False, shortcut=False).judged()
    assert judged == {f"{A}.branch", f"{M}.branch"}  # which are not in the trace, and so not compared


def test_after_a_post_add_norm_the_state_is_known_only_where_it_was_recorded() -> None:
    shown = [f"{A}.residual", f"{A}.branch"]
    assert f"{M}.residual" not in Known(POST, shown, enter=True, shortcut=True).judged()
    assert f"{M}.residual" in Known(POST, [*shown, f"{A}.state"], enter=True, shortcut=True).judged()


IDS = torch.arange(8).reshape(2, 4)
ONES = torch.ones_like(IDS)


def trace(tmp_path: Path, tokens: dict[str, Tensor], **said: str) -> TraceFile:
    path = tmp_path / "t.safetensors"
    write(path, {"embed": torch.randn(2, 4, 16), **tokens}, TraceMetadata(**said))
    return TraceFile.open(path)


def test_the_tokens_of_a_trace_are_its_own(tmp_path: Path) -> None:
    with trace(tmp_path, {"input_ids": IDS}, tokens_sha256=digest({"input_ids": IDS})) as file:
        found = tokens_of(file, {"input_ids": IDS + 1}, given=False)
        assert torch.equal(found["input_ids"], IDS)
        assert torch.equal(found["attention_mask"], ONES)
        with pytest.raises(RequestError, match="recorded on other tokens than those named"):
            tokens_of(file, {"input_ids": IDS + 1}, given=True)


@pytest.mark.parametrize("stored", [("input_ids",), ("input_ids", "attention_mask")])
def test_tokens_that_are_not_stored_are_known_by_their_hash(tmp_path: Path, stored: tuple[str, ...]) -> None:
    usual = {"input_ids": IDS, "attention_mask": ONES, "decoder_input_ids": IDS + 3}
    with trace(tmp_path, {}, tokens_sha256=digest({name: usual[name] for name in stored})) as file:
        assert torch.equal(tokens_of(file, usual, given=False)["input_ids"], IDS)
        with pytest.raises(RequestError, match="recorded on other tokens: name them with --tokens"):
            tokens_of(file, {"input_ids": IDS + 1, "attention_mask": ONES}, given=False)


def test_tokens_that_nobody_tells_are_refused(tmp_path: Path) -> None:
    with trace(tmp_path, {}) as file, pytest.raises(RequestError, match="neither its tokens nor their hash"):
        tokens_of(file, {"input_ids": IDS}, given=True)
    with (
        trace(tmp_path, {"input_ids": IDS}, tokens_sha256="00" * 32) as file,
        pytest.raises(RequestError, match="hash"),
    ):
        tokens_of(file, {"input_ids": IDS}, given=False)


def test_the_dtype_judged_is_that_of_most_sites_or_the_coarser_one_of_the_run() -> None:
    low = {f"layers.{n}.state": torch.ones(2, 4, 16).bfloat16() for n in range(3)}
    mixed = Held("a", {**low, "logits": torch.ones(2, 4, 16)})
    assert dtype_of(mixed, "") == torch.bfloat16
    wide = Held("a", {"logits": torch.ones(2, 4, 16)})
    assert dtype_of(wide, "") == torch.float32
    assert dtype_of(wide, "bfloat16") == torch.bfloat16
    assert dtype_of(wide, "float64") == torch.float32
    assert dtype_of(wide, "fp8 of ours") == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1.0, 2.0, 0.22, -0.5, 1.5])
def test_the_factor_of_a_value_is_read_off_its_elements(dtype: torch.dtype, factor: float) -> None:
    x = torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert factor_of(x * factor, x) == factor
    assert factor_of(x * factor + 0.25, x) is None
    assert factor_of(x.roll(1, -1), x) is None
    assert factor_of(x * float("nan"), x) is None


def test_what_is_switched_off_has_a_factor_of_zero() -> None:
    x = torch.randn(2, 4, 64)
    assert factor_of(x * 0, x) == 0.0
    assert factor_of(x, x * 0) is None
