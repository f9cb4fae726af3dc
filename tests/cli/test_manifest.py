from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockaudit import resources
from tests.cli.conftest import Outcome
from tests.manifest import samples
from tests.manifest.test_draft import CONFIG, MODEL
from tests.manifest.test_schemas import EXAMPLES

Run = Callable[..., Outcome]


def _write(folder: Path, shapes: dict[str, tuple[int, ...]], config: dict[str, Any] | None) -> Path:
    """A checkpoint of zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {}
    end = 0
    for key, shape in shapes.items():
        size = 4
        for side in shape:
            size *= side
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    return _write(tmp_path / "novel", MODEL, CONFIG)


@pytest.fixture
def core(tmp_path: Path) -> Path:
    path = tmp_path / "core.yaml"
    path.write_text(samples.CORE)
    return path


def test_list_has_every_manifest(blockaudit: Run) -> None:
    outcome = blockaudit("manifest", "list")
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0] for line in outcome.out.splitlines()[1:]] == list(resources.manifest_ids())
    assert "h = x + self_attention(rmsnorm(x)); y = h + mlp(rmsnorm(h))" in outcome.out
    rows = json.loads(blockaudit("manifest", "list", "--format", "json").out)
    assert [r["id"] for r in rows] == list(resources.manifest_ids())
    assert {"id", "model_types", "equation", "evidence_label"} == set(rows[0])


def test_show_prints_the_block(blockaudit: Run) -> None:
    out = blockaudit("manifest", "show", "llama").out
    for line in (
        "  h = x + self_attention(rmsnorm(x))", "  y = h + mlp(rmsnorm(h))", "  shortcut crosses norm:     no",
        "  stack final norm:          yes", "config.json: rms_norm_eps", "hidden_size (4096)",
        "model.layers.{l}.input_layernorm.weight", "lm_head.weight  ->  model.embed_tokens.weight",
    ):  # fmt: skip
        assert line in out


@pytest.mark.parametrize("name", resources.manifest_ids())
def test_show_shows_every_manifest(blockaudit: Run, name: str) -> None:
    text, data = blockaudit("manifest", "show", name), blockaudit("manifest", "show", name, "--format", "json")
    assert (text.status, data.status, text.err, data.err) == (0, 0, "", "")
    shown = json.loads(data.out)
    assert shown["id"] == name
    assert len(shown["sha256"]) == 64
    assert any(any(s["equations"].values()) for s in shown["stacks"])


def test_show_a_core_file(blockaudit: Run, core: Path) -> None:
    outcome = blockaudit("manifest", "show", core)
    assert outcome.status == 0
    assert "h = x + self_attention(rmsnorm(x))" in outcome.out


def test_show_draws_the_wiring(blockaudit: Run, tmp_path: Path) -> None:
    out = blockaudit("manifest", "show", "gemma2").out
    assert "  topology:                  Peri-LN\n" in out
    assert "  norms in a layer:          4\n" in out
    assert "╎ causal_self_attention" not in out
    assert "│ causal_self_attention │" in out
    svg = blockaudit("manifest", "show", "gemma2", "--format", "svg")
    assert (svg.status, svg.err, svg.out[:5]) == (0, "", "<svg ")
    for _ in range(2):
        outcome = blockaudit("manifest", "show", "gemma2", "--format", "svg", "--output", tmp_path / "w.svg")
        assert (outcome.status, outcome.out, (tmp_path / "w.svg").read_text(encoding="utf-8")) == (0, "", svg.out)


def test_show_overwrites_no_manifest(blockaudit: Run, core: Path) -> None:
    outcome = blockaudit("manifest", "show", core, "--output", core)
    assert (outcome.status, core.read_text()) == (2, samples.CORE)


def test_show_has_plain_characters_for_a_plain_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blockaudit", "manifest", "show", "bart"],
        capture_output=True, timeout=60, check=True, env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert b"+<---" in done.stdout


def test_diff_counts_what_changes_training_alone(blockaudit: Run, core: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(samples.CORE.replace("mlp_output: 0.0", "mlp_output: 0.1"))
    outcome = blockaudit("manifest", "diff", core, other)
    assert outcome.status == 0
    assert "the same function; " in outcome.out
    assert "change training alone" in outcome.out


def test_check_is_clean_on_what_is_shipped(blockaudit: Run, core: Path) -> None:
    outcome = blockaudit("manifest", "check", "llama", core, *sorted(EXAMPLES.glob("*_manifest.json")))
    assert (outcome.status, outcome.err) == (0, "")
    assert "llama: ok (block_manifest)" in outcome.out
    assert f"{EXAMPLES / 'runtime_manifest.json'}: ok (runtime_manifest)" in outcome.out


def test_check_lists_findings(blockaudit: Run, core: Path) -> None:
    core.write_text(samples.CORE.replace("center: false", "center: true"))
    outcome = blockaudit("manifest", "check", core)
    assert outcome.status == 1
    assert outcome.out.splitlines()[0] == f"{core}: decoder.self_attention.norm_in: center: rmsnorm subtracts no mean"
    assert json.loads(blockaudit("manifest", "check", core, "--format", "json").out)[0]["kind"] == "block_manifest"


def test_check_of_what_cannot_be_read(blockaudit: Run, core: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(samples.CORE.replace("epsilon:", "epsilom:"))
    outcome = blockaudit("manifest", "check", wrong, core, tmp_path / "none.yaml")
    assert outcome.status == 2
    first, second = outcome.err.splitlines()
    assert first.startswith(f"blockaudit: error: {wrong}:8: norm.epsilom: expected one of ")
    assert second == f"blockaudit: error: {tmp_path / 'none.yaml'}: no such file"
    assert f"{core}: ok" in outcome.out


@pytest.mark.parametrize(("a", "b", "status"), [("llama", "llama", 0), ("llama", "mistral", 0), ("llama", "gemma2", 1)])
def test_diff_says_whether_the_function_differs(blockaudit: Run, a: str, b: str, status: int) -> None:
    outcome = blockaudit("manifest", "diff", a, b)
    assert (outcome.status, outcome.err) == (status, "")
    said = "the same function" if status == 0 else "another function"
    assert outcome.out.splitlines()[0].startswith(f"{a} and {b}: {said}")
    data = json.loads(blockaudit("manifest", "diff", a, b, "--format", "json").out)
    assert data["same_function"] is (status == 0)
    assert {d["changes"] for d in data["contract"]} <= {"function", "training", "numerics", "size", "nothing"}


def test_draft_of_an_unknown_architecture(blockaudit: Run, novel: Path, tmp_path: Path) -> None:
    target = tmp_path / "drafted.json"
    outcome = blockaudit("manifest", "draft", novel, "--output", target)
    assert (outcome.status, outcome.out) == (0, "")
    assert target.read_text() == blockaudit("manifest", "draft", novel).out
    assert blockaudit("manifest", "check", target).status == 0
    shown = json.loads(blockaudit("manifest", "show", target, "--format", "json").out)
    assert (shown["witness"], shown["stacks"][0]["equations"]) == ("headers", {"": []})


def test_remarks_of_a_draft_go_to_stderr(blockaudit: Run, tmp_path: Path) -> None:
    novel = _write(tmp_path / "novel", MODEL, CONFIG | {"num_hidden_layers": 9})
    outcome = blockaudit("manifest", "draft", novel)
    assert outcome.status == 0
    assert outcome.err.startswith("blockaudit: note: config.json says num_hidden_layers = 9 and there are 3 layers")
    json.loads(outcome.out)


def test_a_pinned_draft_holds_what_the_config_said(blockaudit: Run, novel: Path) -> None:
    document = json.loads(blockaudit("manifest", "draft", novel, "--pin").out)
    assert document["dims"]["d_model"] == {"config": "hidden_size", "pinned": 64}


@pytest.mark.parametrize("inside", ["m.json", "config.json", "../novel/m.json"])
def test_nothing_is_drafted_into_source(blockaudit: Run, novel: Path, inside: str) -> None:
    before = sorted(novel.iterdir())
    outcome = blockaudit("manifest", "draft", novel, "--output", novel / inside)
    assert outcome.status == 2
    assert "--output" in outcome.err
    assert "where nothing is ever written" in outcome.err
    assert sorted(novel.iterdir()) == before


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["draft", "SOURCE", "--level", "graph"], "its class gives no whole manifest: transformers"),
        (["draft", "SOURCE", "--level", "deep"], "unknown --level 'deep': expected headers or graph"),
        (["draft", "/no/such/source"], "/no/such/source"),
        (["show", "gpt9"], "neither a manifest file nor one of the library"),
        (["show", "llama", "--format", "xml"], "unknown format 'xml': manifest show writes text, json or svg"),
        (["diff", "llama"], "Missing argument"),
        (["explode"], "No such command"),
    ],
)
def test_what_cannot_be_served_is_one_line(blockaudit: Run, novel: Path, argv: list[str], said: str) -> None:
    outcome = blockaudit("manifest", *[str(novel) if a == "SOURCE" else a for a in argv])
    assert (outcome.status, outcome.out) == (2, "")
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_nothing_heavy_is_loaded_for_the_library(tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "jsonschema", "yaml", "rich", "safetensors")
    code = (
        "import sys\nfrom blockaudit.cli.main import run\n"
        "for argv in (['list'], ['show', 'llama'], ['check', 'llama'], ['diff', 'llama', 'gemma2']):\n"
        "    run(['manifest', *argv])\n"
        f"print(*(m for m in {heavy!r} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.split() == []
