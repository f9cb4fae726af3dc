from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import deepseek, faults, llama
from benchmarks.sparse import Layout, write
from blockaudit import inspect

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def sound() -> Layout:
    return deepseek.layout()


@pytest.mark.parametrize("model", [deepseek, llama])
def test_a_sound_checkpoint_of_real_size_is_accepted(tmp_path: Path, model: ModuleType) -> None:
    report = inspect(write(tmp_path, model.layout()))
    assert report.verdict == "accepted"
    assert faults.named(report.findings) == set()


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_one_fault_among_ninety_thousand_tensors_is_named(tmp_path: Path, sound: Layout, fault: faults.Fault) -> None:
    layout = sound.copy()
    fault.plant(layout)
    report = inspect(write(tmp_path, layout))
    assert faults.named(report.findings) == fault.expected(layout)
    assert report.verdict == ("accepted" if fault.name == "a wrong total_size" else "rejected")
