"""Where findings point: through a whole audit of files on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import blockaudit
from blockaudit.pipeline.json_lines import line_of
from blockaudit.records.report import Finding, Place
from tests.support.gguf import Draft, built

TINY = Path(__file__).parents[2] / "fixtures" / "tiny_llama"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a copy of the fixture whose epsilon was changed, and a manifest that pins the old."""
    shutil.copytree(TINY, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    from blockaudit.manifest.draft import encode
    from blockaudit.pipeline import draft

    (tmp_path / "held.json").write_text(encode(draft("model", pin=True, level="headers").manifest))
    _set(tmp_path / "model", rms_norm_eps=1e-5)
    return tmp_path


def _set(model: Path, **fields: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **fields}, indent=2))


def _finding(source: str, code: str, manifest: str | None = None) -> Finding:
    report = blockaudit.inspect(source, manifest=manifest)
    return next(f for f in report.findings if f.code == code)


def _line(path: str, text: str) -> int:
    """The first line that has this text."""
    return next(n for n, line in enumerate(Path(path).read_text().splitlines(), 1) if text in line)


@pytest.mark.usefixtures("here")
def test_a_field_is_in_the_manifest_and_in_config() -> None:
    assert _finding("model", "N201", "held.json").places == (
        Place("held.json", _line("held.json", '"epsilon":')),
        Place("model/config.json", _line("model/config.json", "rms_norm_eps")),
    )


def test_a_yaml_manifest_has_lines_too(here: Path) -> None:
    document = json.loads((here / "held.json").read_text())
    (here / "held.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    assert _finding("model", "N201", "held.yaml").places[0] == Place("held.yaml", _line("held.yaml", "epsilon:"))


def test_a_manifest_of_the_library_is_no_place(here: Path) -> None:
    _set(here / "model", num_hidden_layers=5)
    assert _finding("model", "C104").places == (Place("model/config.json", _line("model/config.json", "num_hidden")),)


def test_paths_are_as_typed(here: Path) -> None:
    absolute = f"{here}/model/"
    found = _finding(absolute, "N201", str(here / "held.json")).places
    assert [p.path for p in found] == [str(here / "held.json"), f"{here}/model/config.json"]


def test_a_file_beside_which_nobody_stands(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "model")
    found = _finding("model.safetensors", "N201", "../held.json").places
    assert [p.path for p in found] == ["../held.json", "config.json"]


def test_a_fault_of_a_file_is_in_the_file(here: Path) -> None:
    weights = here / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert _finding("model", "F102").places == (Place("model/model.safetensors"),)


def test_a_missing_tensor_is_missing_from_the_only_file(here: Path) -> None:
    weights = here / "model" / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data.replace(b"model.norm.weight", b"model.nrom.weight"))
    assert _finding("model", "N106").places == (Place("model/model.safetensors"),)


def test_what_has_no_better_place_is_at_the_config_or_the_source(here: Path) -> None:
    _set(here / "model", torch_dtype="float32", dtype="float32")
    places = {f.code: f.places for f in blockaudit.inspect("model").findings}
    assert places
    assert all(places.values())
    (here / "model" / "config.json").unlink()
    assert _finding("model", "C101").places == (Place("model"),)


@pytest.mark.parametrize(
    ("text", "where", "line"),
    [
        ('{"a": 1,\n "b": [\n  {"c": 2},\n  3\n]}', ("b", 0, "c"), 3),
        ('{"a": 1,\n "b": [\n  {"c": 2},\n  3\n]}', ("b", 1), 4),
        ('{"a": "b: {\\"b\\": 1}",\n\n "b": 1}', ("b",), 3),
        ('{"a":\n {"b": {}}, \n"b": 1}', ("b",), 3),
        ('{"\\u0061": 1}', ("a",), 1),
        ('{"a": 1}', ("a", "b"), 0),
        ("", ("a",), 0),
        ("]}{:,", ("a",), 0),
        ('{"a": [' + "[" * 100_000, ("b",), 0),
    ],
)
def test_lines_of_json(text: str, where: tuple[str | int, ...], line: int) -> None:
    assert line_of(text, where) == line


def test_the_config_of_a_gguf_stands_in_the_file_and_in_no_config_json_beside_it(tmp_path: Path) -> None:
    def wrong(draft: Draft) -> None:
        draft.values["attention.head_count_kv"] = 2

    folder = built(wrong)(tmp_path)
    (folder / "config.json").write_text('{"model_type": "llama",\n "num_key_value_heads": 2}')
    assert _finding(str(folder), "C105").places == (Place(f"{folder}/model.gguf"),)
