"""Injected faults: where each is first seen, the rule that fires, the edit that explains it, and nobody else blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.trace.faults import check

TABLE = check.table()
# One of each kind; the soak tests run them all.
SAMPLE = (
    "eps_one_layer", "eps_outside_the_root", "unbiased_variance", "offset_lost", "moments_in_bf16",
    "rmsnorm_for_layernorm", "norm_in_place", "norms_swapped", "olmo2_run_as_pre_ln", "parallel_run_as_sequential",
    "shortcut_doubled_in_t5", "layers_swapped", "mask_lost", "final_norm_skipped",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_is_located_and_named(folder: Path, name: str) -> None:
    fault = TABLE[name]
    assert check.wrong(fault, check.run(fault, folder, mode="local")) == {}


def test_the_corpus_is_as_wide_as_it_has_to_be() -> None:
    families = {fault.family for fault in TABLE.values()}
    assert families >= {"llama", "gemma2", "gpt2", "gpt_neox", "olmo2", "bert", "t5"}
    assert len(TABLE) >= 45
    assert set(SAMPLE) <= TABLE.keys()
