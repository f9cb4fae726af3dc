from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockaudit.records.sites import ordered
from blockaudit.records.trace_file import TraceMetadata
from blockaudit.trace.files.read import TraceFile
from blockaudit.trace.files.write import TraceWriter, write
from blockaudit.trace.tokens import digest
from tests.cli.conftest import Outcome
from tests.families import models

Run = Callable[..., Outcome]
NAMES = ordered(["embed", "logits", *(f"layers.{i}.{s}" for i in (0, 1) for s in ("mlp.norm_in", "mlp.sum", "state"))])


def _values(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(2, 4, 16, generator=draw).to(dtype) for name in NAMES}


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(8).reshape(2, 4), "attention_mask": torch.ones(2, 4).long()}


def _metadata(**other: str) -> TraceMetadata:
    said: dict[str, str] = {"manifest_sha256": "ab" * 32, "tokens_sha256": digest(_tokens())}
    return TraceMetadata(**(said | other))


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, values: dict[str, Tensor], tokens: dict[str, Tensor] | None = None, **other: str) -> Path:
        path = tmp_path / f"{name}.safetensors"
        write(path, values | (_tokens() if tokens is None else tokens), _metadata(**other))
        return path

    return make


Put = Callable[..., Path]


def test_show_is_a_table_of_the_sites(blockaudit: Run, put: Put) -> None:
    values = _values(dtype=torch.bfloat16)
    values["layers.1.state"][0, 0, 0] = torch.nan
    shown = blockaudit("trace", "show", put("a", values, dtype_policy="bfloat16", mode="end-to-end"))
    assert (shown.status, shown.err) == (0, "")
    assert re.search(r"^dtype_policy +bfloat16$", shown.out, re.MULTILINE)
    rows = [re.split(r"  +", line) for line in shown.out.splitlines() if " x " in line]
    assert [row[0] for row in rows] == NAMES
    assert {tuple(row[1:3]) for row in rows} == {("2 x 4 x 16", "bfloat16")}
    assert [row[0] for row in rows if row[4] == "1"] == ["layers.1.state"]


def test_show_as_json(blockaudit: Run, put: Put) -> None:
    path = put("a", _values())
    data = json.loads(blockaudit("trace", "show", path, "--format", "json").out)
    assert set(data) == {"file", "metadata", "sites"}
    assert data["file"] == str(path)
    assert data["metadata"]["manifest_sha256"] == "ab" * 32
    first = data["sites"][0]
    rms = float(_values()["embed"].double().square().mean().sqrt())
    assert first == {
        "site": "embed",
        "shape": [2, 4, 16],
        "dtype": "float32",
        "rms": float(f"{rms:.6g}"),
        "non_finite": 0,
    }


LOOK = """
import sys
from blockaudit.cli.main import run
status = run(["trace", "show", sys.argv[1]])
print(status, *(m for m in ("torch", "transformers", "safetensors", "jsonschema") if m in sys.modules))
"""


def test_show_needs_no_torch(put: Put) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(put("a", _values()))], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0"


def test_equal_traces_pass(blockaudit: Run, put: Put) -> None:
    found = blockaudit("trace", "compare", put("a", _values()), put("b", _values()))
    assert (found.status, found.err) == (0, "")
    assert found.out.splitlines()[-1] == f"{len(NAMES)} sites within tolerance"


def test_the_first_divergence_is_the_first_in_call_order(blockaudit: Run, put: Put) -> None:
    values = _values()
    for name in ("layers.0.state", "layers.1.mlp.norm_in", "logits"):
        values[name] = values[name] * 1.01
    values["logits"][0, 0, 0] = torch.inf
    a, b = put("a", values), put("b", _values())
    found = blockaudit("trace", "compare", a, b)
    assert found.status == 1
    assert found.out.splitlines()[-1].startswith("first divergence: layers.0.state, max_abs 0.04101 over ")
    assert found.out.splitlines()[-1].endswith(f"3 of {len(NAMES)} sites fail")
    data = json.loads(blockaudit("trace", "compare", a, b, "--format", "json").out)
    assert data["passed"] is False
    assert data["first_divergence"]["site"] == "layers.0.state"
    assert data["policy"]["name"] == "default"
    assert [s["site"] for s in data["sites"]] == NAMES
    assert [s["site"] for s in data["sites"] if not s["passed"]] == ["layers.0.state", "layers.1.mlp.norm_in", "logits"]
    last = data["sites"][-1]
    assert (last["metric"], last["observed"], last["non_finite"]) == ("non_finite", 1, 1)


def test_a_policy_decides(blockaudit: Run, put: Put, tmp_path: Path) -> None:
    values = {name: value * 1.01 for name, value in _values().items()}
    a, b = put("a", values), put("b", _values())
    policy: dict[str, Any] = {"schema": "blockaudit/tolerance-policy/1", "name": "lax"}
    policy["sites"] = [{"site": "*", "rtol": 0.02, "reason": "a quantised runtime"}]
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy))
    assert blockaudit("trace", "compare", a, b).status == 1
    assert blockaudit("trace", "compare", a, b, "--tolerance", path).status == 0
    path.write_text(json.dumps(policy | {"kind": "lax"}))
    refused = blockaudit("trace", "compare", a, b, "--tolerance", path)
    assert refused.status == 2
    assert re.fullmatch(rf"blockaudit: error: {path}:1: kind: expected one of measured, .*\n", refused.err)


def test_the_coarsest_dtype_is_judged(blockaudit: Run, put: Put) -> None:
    low = {name: value.bfloat16() for name, value in _values().items()}
    stored_wide = {name: value.float() for name, value in low.items()}
    b = put("b", _values())
    assert blockaudit("trace", "compare", put("a", low), b).status == 0
    assert blockaudit("trace", "compare", put("c", stored_wide, dtype_policy="bfloat16"), b).status == 0
    assert blockaudit("trace", "compare", put("d", stored_wide), b).status == 1


def test_padding_is_not_compared(blockaudit: Run, put: Put) -> None:
    tokens = {"input_ids": torch.arange(8).reshape(2, 4), "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])}
    values = _values()
    values["embed"][0, 0] = 99
    a = put("a", values, tokens, tokens_sha256=digest(tokens))
    b = put("b", _values(), tokens, tokens_sha256=digest(tokens))
    assert blockaudit("trace", "compare", a, b).status == 0


def test_sites_of_one_side_are_listed_and_not_judged(blockaudit: Run, put: Put) -> None:
    fewer = {name: value for name, value in _values().items() if name.endswith("state")}
    a, b = put("a", fewer), put("b", _values())
    found = blockaudit("trace", "compare", a, b)
    assert found.status == 0
    assert "only in the reference, not judged: embed, layers.0.mlp.norm_in" in found.out
    data = json.loads(blockaudit("trace", "compare", b, a, "--format", "json").out)
    assert data["only_candidate"] == [n for n in NAMES if not n.endswith("state")]
    assert data["only_reference"] == []


def test_remarks_go_to_stderr(blockaudit: Run, put: Put) -> None:
    a = put("a", _values(), {}, tokens_sha256="", manifest_sha256="cd" * 32)
    found = blockaudit("trace", "compare", a, put("b", _values()))
    assert found.status == 0
    assert found.err.splitlines() == [
        "blockaudit: note: whether the traces are of the same tokens cannot be told: one of them does not say",
        "blockaudit: note: the traces were recorded for two different manifests",
    ]


OTHER = {"input_ids": torch.ones(2, 4).long()}


@pytest.mark.parametrize(
    ("values", "tokens", "metadata", "said"),
    [
        (_values(), OTHER, {"tokens_sha256": digest(OTHER)}, "traces of different tokens: input_ids differs"),
        (_values(), {}, {"tokens_sha256": "00" * 32}, "traces of different tokens: their hashes differ"),
        (_values(), OTHER, {}, "its tokens are not those whose hash its metadata gives"),
        ({"final_norm": torch.ones(2, 4, 16)}, None, {}, "have no site in common"),
        ({"embed": torch.ones(2, 4, 8)}, None, {}, "embed has shape [2, 4, 8] in"),
    ],
    ids=["other tokens", "another hash", "a wrong hash", "no common site", "another shape"],
)
def test_what_cannot_be_compared_is_one_line(
    blockaudit: Run, put: Put, values: dict[str, Tensor], tokens: Any, metadata: dict[str, str], said: str
) -> None:
    found = blockaudit("trace", "compare", put("a", values, tokens, **metadata), put("b", _values()))
    assert (found.status, found.out) == (2, "")
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize("command", [("show",), ("compare",)])
def test_no_trace_is_one_line(blockaudit: Run, put: Put, tmp_path: Path, command: tuple[str]) -> None:
    other = [put("b", _values())] if command == ("compare",) else []
    (tmp_path / "text").write_text("no trace")
    for name in ("none", "text"):
        found = blockaudit("trace", *command, tmp_path / name, *other)
        assert (found.status, found.out) == (2, "")
        assert found.err.count("\n") == 1
    assert blockaudit("trace", *command, put("a", _values()), *other, "--format", "xml").status == 2


def _recorder() -> str:
    """The generic recorder of docs/traces.md."""
    document = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "class Recorder" in block)


def test_a_runtimes_script_of_twenty_lines(blockaudit: Run, put: Put, tmp_path: Path) -> None:
    """What it records of a module is a trace that compares."""
    script = _recorder()
    assert len(script.splitlines()) <= 25
    space: dict[str, Any] = {}
    exec(script, space)
    model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 16))
    ids = _tokens()["input_ids"]
    recorder = space["Recorder"]()
    for module, site in zip(model, ("embed", "layers.0.mlp.norm_in", "layers.0.mlp.branch"), strict=True):
        recorder.watch(module, site)
    model(ids)
    model(ids * 0)  # a decoding step, which is not recorded
    path = tmp_path / "theirs.safetensors"
    recorder.save(path, ids, "float32", "ab" * 32)
    values = {"embed": model[0](ids), "layers.0.mlp.norm_in": model[1](model[0](ids))}
    found = blockaudit("trace", "compare", path, put("ours", {n: v.detach() for n, v in values.items()}))
    assert (found.status, found.err) == (0, "")
    assert "only in the candidate, not judged: layers.0.mlp.branch" in found.out


def test_outputs_in_a_tuple_and_values_of_another_layout_are_recorded(put: Put, tmp_path: Path) -> None:
    class Fused(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, None]:
            return x + 1, x.mul_(2), None

    space: dict[str, Any] = {}
    exec(_recorder(), space)
    recorder, module, ids = space["Recorder"](), Fused(), _tokens()["input_ids"]
    recorder.watch(module, "layers.0.mlp.norm_in", "layers.0.mlp.residual")
    x = torch.randn(4, 2, 16)
    expected = x.clone().transpose(0, 1)
    module(x)
    recorder.save(tmp_path / "t.safetensors", ids, "float32", shape=lambda value: value.transpose(0, 1))
    with TraceFile.open(tmp_path / "t.safetensors") as file:
        assert torch.equal(file.tensor("layers.0.mlp.norm_in"), expected + 1)
        assert torch.equal(file.tensor("layers.0.mlp.residual"), expected * 2)
        assert file.metadata.tokens_sha256 == digest(file.tokens())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("trace") / "llama"
    models.build("llama").save_pretrained(path)
    return path


SIZE = ("--device", "cpu", "--batch", "2", "--seq-len", "6")


def test_record_writes_a_trace(blockaudit: Run, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    done = blockaudit("trace", "record", llama, "--out", out, *SIZE, "--dtype", "bfloat16", "--layers", "1:2")
    assert (done.status, done.out) == (0, "")
    data = json.loads(blockaudit("trace", "show", out, "--format", "json").out)
    shown = {site["site"]: site for site in data["sites"]}
    assert {name for name in shown if name.startswith("layers.")} >= {"layers.1.mlp.norm_in", "layers.1.state"}
    assert not any(name.startswith(("layers.0.", "layers.2.")) for name in shown)
    assert shown["final_norm"]["shape"] == [2, 6, 32]
    assert {site["dtype"] for site in shown.values()} == {"bfloat16"}
    assert data["metadata"]["dtype_policy"] == "bfloat16"


def test_record_takes_the_tokens_that_it_is_given(blockaudit: Run, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text("[[1, 2, 3], [4, 5]]")
    out = tmp_path / "t.safetensors"
    given = ("--device", "cpu", "--dtype", "float32", "--tokens", tmp_path / "ids.json")
    assert blockaudit("trace", "record", llama, "--out", out, *given).status == 0
    with TraceFile.open(out) as file:
        assert torch.equal(file.tensor("input_ids")[0], torch.tensor([1, 2, 3]))
        assert torch.equal(file.tensor("attention_mask"), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    held = blockaudit("conform", llama, "--device", "cpu", "--candidate", out, "--format", "json")
    assert held.status == 0
    (tmp_path / "ids.json").write_text("[[1, 2, 96]]")
    refused = blockaudit("trace", "record", llama, "--out", out, *given)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.splitlines()[-1].endswith("--tokens: input_ids holds 96, and there are 96 token ids")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--candidate", "other.safetensors"), "it is a trace already"),
        (("--candidate", "none.py:model"), "no such file: 'none.py'"),
        (("--layers", "first"), "--layers 'first': expected A:B"),
        (("--seq-len", "640"), "the model has 64 positions"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(
    blockaudit: Run, llama: Path, tmp_path: Path, argv: tuple[str, ...], said: str
) -> None:
    done = blockaudit("trace", "record", llama, "--out", tmp_path / "t.safetensors", "--device", "cpu", *argv)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_into_the_source(blockaudit: Run, llama: Path) -> None:
    for command in (("trace", "record", llama, "--out"), ("conform", llama, "--trace-out")):
        done = blockaudit(*command, llama / "t.safetensors", *SIZE)
        assert (done.status, done.out) == (2, "")
        assert "lies in SOURCE" in done.err


def test_a_full_disk_leaves_the_report(
    blockaudit: Run, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[int] = []
    own = TraceWriter._write  # pyright: ignore[reportPrivateUsage] - the disk is what is played here

    def full(self: TraceWriter, data: memoryview) -> None:
        wrote.append(len(data))
        if len(wrote) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        own(self, data)

    monkeypatch.setattr(TraceWriter, "_write", full)
    out = tmp_path / "t.safetensors"
    done = blockaudit("conform", llama, *SIZE, "--dtype", "float32", "--trace-out", out, "--format", "json")
    assert done.status == 2
    assert done.err.splitlines()[-1] == f"blockaudit: error: cannot write trace '{out}': No space left on device"
    assert json.loads(done.out)["verdict"] == "accepted"
    assert list(tmp_path.iterdir()) == []
