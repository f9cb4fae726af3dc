"""A checkpoint on a hub is audited as the same checkpoint in a folder is, from a small part of its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.storage import WORKERS
from blockaudit.checkpoint.values import close_files, read_vector
from tests.checkpoint.hub.conftest import TOKEN
from tests.support import sparse
from tests.support.audit import Outcome, inspect
from tests.support.checkpoint import INDEX, Build, config, drop, family, sharded, then
from tests.support.hub import COMMIT, SOURCE, Hub, sha256_of

Serve = Callable[[Path], Hub]


def report(outcome: Outcome) -> dict[str, Any]:
    """What a report says but for where its subject was found."""
    assert outcome.report is not None, outcome.err
    source = outcome.report["subject"]["source"]
    found = json.loads(outcome.out.replace(f'"path": "{source}/', '"path": "./'))
    found["subject"] = {k: v for k, v in found["subject"].items() if k not in ("source", "revision", "hashes")}
    return found


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[0]


def truncated(folder: Path) -> None:
    path = first_shard(folder)
    path.write_bytes(path.read_bytes()[:-100])


def endless_header(folder: Path) -> None:
    path = first_shard(folder)
    path.write_bytes((2**60).to_bytes(8, "little") + path.read_bytes()[8:])


def inside_its_header(folder: Path) -> None:
    path = first_shard(folder)
    path.write_bytes(path.read_bytes()[:40])


def empty(folder: Path) -> None:
    first_shard(folder).write_bytes(b"")


def leads_out(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= {"model.norm.weight": "../secret.safetensors", "lm_head.weight": "/etc/passwd"}
    (folder / INDEX).write_text(json.dumps(index))


def lost_shard(folder: Path) -> None:
    first_shard(folder).unlink()


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("<html>")


SOUND: dict[str, Build] = {
    "whole": family("llama"),
    "sharded": family("llama", sharded(5)),
    "biases": family("gpt2"),
    "offset": family("gemma2"),
    "norm missing": family("llama", drop("*.0.input_layernorm.weight")),
    "epsilon": family("llama", config(rms_norm_eps=0.1)),
    "truncated": then(family("llama"), truncated),
    "length of 2^60": then(family("llama"), endless_header),
    "truncated header": then(family("llama"), inside_its_header),
    "empty": then(family("llama"), empty),
    "index leads out": then(family("llama", sharded(3)), leads_out),
    "shard missing": then(family("llama", sharded(3)), lost_shard),
    "config broken": then(family("llama"), no_json),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_hub_and_a_folder_have_one_report(name: str, connected: Serve, tmp_path: Path) -> None:
    folder = SOUND[name](tmp_path / "model")
    here = inspect(folder)
    connected(folder)
    there = inspect(SOURCE)
    assert there.status == here.status, there.err
    assert report(there) == report(here)


@pytest.mark.parametrize("shards", [1, 6])
def test_under_a_hundredth_is_read(shards: int, connected: Serve, tmp_path: Path) -> None:
    folder = sparse.llama(tmp_path / "large", shards)
    size = sparse.size_of(folder)
    assert size > 600_000_000
    hub = connected(folder)
    there = inspect(SOURCE)
    assert there.status == 0, there.err
    assert 0 < hub.sent < size / 100
    assert report(there) == report(inspect(folder))


def test_the_subject_names_the_commit_and_the_published_hashes(connected: Serve, tmp_path: Path) -> None:
    folder = family("llama", sharded(2))(tmp_path / "model")
    connected(folder)
    there = inspect(f"{SOURCE}@refs/pr/1")
    assert there.report is not None, there.err
    subject = there.report["subject"]
    assert subject["source"] == f"{SOURCE}@refs/pr/1"
    assert subject["revision"] == COMMIT
    assert subject["hashes"] == {p.name: sha256_of(p) for p in folder.glob("*.safetensors")}


def test_the_text_says_how_much_was_read(connected: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from blockaudit.cli.main import run

    connected(sparse.llama(tmp_path / "large"))
    for _ in range(2):
        assert run(["inspect", SOURCE]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines() if "commit" in line]
        ((_, commit, read, unit, *of),) = lines
        assert commit == f"{COMMIT},"
        assert 30 < float(read) < 70
        assert [unit, *of] == ["kB", "read", "of", "673", "MB"]


def test_everything_is_read_at_the_commit_and_the_token_stays_with_the_hub(connected: Serve, tmp_path: Path) -> None:
    hub = connected(family("llama", sharded(3))(tmp_path / "model"))
    there = inspect(SOURCE)
    assert there.status == 0
    lookup, *files = hub.asked
    assert lookup.path == "/api/models/org/name/revision/main?blobs=true"
    assert all(COMMIT in r.path for r in files if not r.to_cdn)
    assert {r.headers.get("Authorization") for r in hub.asked if not r.to_cdn} == {f"Bearer {TOKEN}"}
    assert any(r.to_cdn for r in files)
    assert {r.headers.get("Authorization") for r in hub.asked if r.to_cdn} == {None}
    assert TOKEN not in there.out + there.err


def test_shards_are_asked_for_together(connected: Serve, tmp_path: Path) -> None:
    """One that waits for another's request cannot be answered by a client that asks for one at a time."""
    import threading

    hub = connected(family("llama", sharded(4))(tmp_path / "model"))
    all_here = threading.Barrier(4, timeout=20)
    waited: set[str] = set()

    def fault(request: Any) -> bool:
        if request.to_cdn and request.path not in waited:
            waited.add(request.path)
            all_here.wait()
        return False

    hub.fault = fault
    assert inspect(SOURCE).status == 0
    assert len(waited) == 4 <= WORKERS


def test_a_place_that_ran_out_is_asked_for_again(connected: Serve, tmp_path: Path) -> None:
    hub = connected(sparse.llama(tmp_path / "large"))
    checkpoint = open_checkpoint(SOURCE)
    refused: list[str] = []

    def fault(request: Any) -> bool:
        if request.to_cdn and not refused:
            refused.append(request.path)
            request.answer(403, b"expired")
            return True
        return False

    try:
        hub.fault = fault
        hub.forget()
        stats = read_vector(checkpoint, "model.norm.weight")
    finally:
        close_files()
    assert [r.to_cdn for r in hub.asked] == [True, False, True]
    assert stats is not None
    assert stats.count == 2048


def test_what_reads_every_weight_is_refused(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from blockaudit.cli.main import run

    for argv in (
        ["inspect", SOURCE, "--level", "values"],
        ["inspect", SOURCE, "--trust-remote-code"],
        ["conform", SOURCE],
        ["trace", "record", SOURCE, "--out", str(tmp_path / "t.safetensors")],
    ):
        assert run(argv) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "download" in line
        assert SOURCE in line
    assert hub.asked == []


def test_a_draft_of_a_hub_is_that_of_the_folder(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    from blockaudit.cli.main import run

    assert run(["manifest", "draft", SOURCE, "--level", "headers"]) == 0
    there = capsys.readouterr().out
    assert run(["manifest", "draft", str(hub.folder), "--level", "headers"]) == 0
    assert capsys.readouterr().out == there


def pickled(folder: Path, **options: Any) -> Path:
    """A state dict in one of PyTorch's containers, larger than what is read of a file's beginning."""
    torch = pytest.importorskip("torch")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sparse.CONFIG | {"num_hidden_layers": 1, "vocab_size": 3000}))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (3000, 2048), "model.norm.weight": (2048,), "lm_head.weight": (3000, 2048),
    } | {f"model.layers.0.{name}.weight": shape for name, shape in sparse.LAYER.items()}  # fmt: skip
    state = {k: torch.full(shape, 1.0, dtype=torch.bfloat16) for k, shape in shapes.items()}
    torch.save(state, folder / "pytorch_model.bin", **options)
    return folder


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_read_by_ranges(zipped: bool, connected: Serve, tmp_path: Path) -> None:
    folder = pickled(tmp_path / "pickled", _use_new_zipfile_serialization=zipped)
    hub = connected(folder)
    there = inspect(SOURCE)
    here = inspect(folder)
    assert there.status == here.status == 0, there.err
    assert report(there) == report(here)
    assert 0 < hub.sent < sparse.size_of(folder) / 100
    assert len(hub.asked) < 60


def test_the_graph_of_a_hub_is_that_of_the_folder(hub: Hub) -> None:
    pytest.importorskip("transformers")
    there = inspect(SOURCE, "--level", "graph")
    assert there.status == 0, there.err
    assert report(there) == report(inspect(hub.folder, "--level", "graph"))


def test_a_local_audit_loads_nothing_of_the_hub(tmp_path: Path) -> None:
    import subprocess
    import sys

    folder = family("llama")(tmp_path / "model")
    code = "import sys; from blockaudit.cli.main import run; run(sys.argv[1:]); print(*sys.modules, sep='\\n')"
    argv = [sys.executable, "-c", code, "inspect", str(folder), "--quiet"]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert "blockaudit.checkpoint.storage" in loaded
    assert not [m for m in loaded if m.startswith(("urllib3", "http.client", "blockaudit.checkpoint.hub"))]
