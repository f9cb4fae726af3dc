from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.mutate import NAMES, attempt, seeds, survive

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(seed=st.integers(0, 2**32))
def test_damaged_files_are_faults_and_never_exceptions(tmp_path: Path, name: str, seed: int) -> None:
    source = tmp_path / "seeds"
    source.mkdir(exist_ok=True)
    attempt(tmp_path, name, seeds(source)[name], seed)


@pytest.mark.parametrize("name", ["m.safetensors", "m.bin", "m.pt", "m.index.json", "m", "m.npz"])
@QUICK
@given(content=st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    survive(tmp_path / name)


@QUICK
@given(content=st.binary(max_size=100), head=st.sampled_from([b"\x80\x02", b"\x80\x04", b"(", b"}", b"cos\n"]))
def test_any_pickle(tmp_path: Path, content: bytes, head: bytes) -> None:
    (tmp_path / "m.pt").write_bytes(head + content)
    survive(tmp_path / "m.pt")
