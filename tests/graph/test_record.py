"""Classes that do not run under fake tensors, or in bfloat16, are recorded all the same; large ones are not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit.graph import record, tiny, witness
from blockaudit.graph.reader import Reader


def _config(model_type: str, class_name: str) -> dict[str, Any]:
    config = tiny.configs(model_type, class_name)[0]().to_dict()
    return {**config, "model_type": model_type, "architectures": [class_name]}


@pytest.mark.parametrize(
    ("model_type", "class_name"), [("xlm", "XLMWithLMHeadModel"), ("modernbert", "ModernBertForMaskedLM")]
)
def test_code_that_reads_values_is_run_with_real_weights(model_type: str, class_name: str) -> None:
    recording = record.record(_config(model_type, class_name))
    stream = Reader(recording).stream(recording.hidden["decoder"])
    assert (len(stream.adds), stream.unread) == (6, ())


def test_a_large_model_is_not_built_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_MOST_REAL", 100)
    with pytest.raises(record.RecordingError, match="DataDependentOutput"):
        record.record(_config("xlm", "XLMWithLMHeadModel"))


def test_a_class_that_runs_in_float32_alone_is_read_from_that() -> None:
    config = _config("nystromformer", "NystromformerForMaskedLM")
    with pytest.raises(record.RecordingError):
        record.record(config)
    executed = witness.testify_class(config)
    assert executed.failure == ""
    assert executed.testimony.statements or executed.unread
