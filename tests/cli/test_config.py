from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from blockaudit import resources
from blockaudit.cli.config import _KEYS  # pyright: ignore[reportPrivateUsage]
from blockaudit.cli.toml_lines import line_of
from tests.cli.suppressing import JUNE, WAIVER, Run, audited, changed, waiver
from tests.support.checkpoint import config, family

Asked = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository, and the working directory in it."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(JUNE))
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def _own(text: str, folder: Path | None = None) -> None:
    ((folder or Path()) / "blockaudit.toml").write_text(text, encoding="utf-8")


FULL = """
select = ["N,K", "C1"]
ignore = "N201"
strict = true
allow-unverified = true
manifest = "llama"
level = "values"
"""


def _tool(text: str) -> str:
    return f'[project]\nname = "x"\n[tool.blockaudit]\n{text}'


@pytest.mark.parametrize(
    ("name", "text"),
    [("blockaudit.toml", FULL), ("pyproject.toml", _tool(FULL)), ("blockaudit.toml", f"[tool.blockaudit]\n{FULL}")],
)
def test_every_option_is_read(blockaudit: Run, audits: Asked, name: str, text: str) -> None:
    Path(name).write_text(text)
    assert blockaudit("inspect", "open").status == 0
    (asked,) = audits
    assert (asked["select"], asked["ignore"]) == (("N", "K", "C1"), ("N201",))
    assert (asked["strict"], asked["allow_unverified"], asked["manifest"], asked["level"]) == (
        True, True, "llama", "values",
    )  # fmt: skip


def test_the_command_line_wins(blockaudit: Run, audits: Asked) -> None:
    _own(FULL + 'format = "json"\n')
    outcome = blockaudit(
        "inspect", "open", "--select", "S", "--ignore", "S1", "--no-strict", "--deny-unverified", "--manifest",
        "gpt2", "--level", "headers", "--format", "text",
    )  # fmt: skip
    (asked,) = audits
    assert (asked["select"], asked["ignore"], asked["strict"]) == (("S",), ("S1",), False)
    assert (asked["manifest"], asked["level"], outcome.status) == ("gpt2", "headers", 3)
    assert outcome.out.startswith("UNVERIFIED")


def test_format_and_reports(blockaudit: Run, audits: Asked, project: Path) -> None:
    _own('format = "json"\nreport = ["out/a.json", "b.txt"]\n')
    (project / "out").mkdir()
    outcome = blockaudit("inspect", "good")
    assert json.loads(outcome.out) == json.loads((project / "out" / "a.json").read_text())
    assert (project / "b.txt").is_file()
    (project / "b.txt").unlink()
    blockaudit("inspect", "good", "--report", "c.json")
    assert (project / "c.json").is_file()
    assert not (project / "b.txt").exists()


@pytest.mark.parametrize("option", ["--no-config", "--isolated"])
def test_it_can_be_left_out(blockaudit: Run, audits: Asked, option: str) -> None:
    _own(FULL)
    blockaudit("inspect", "good", option)
    assert (audits[0]["level"], audits[0]["strict"]) == ("headers", False)


def test_one_that_is_named_is_the_one(blockaudit: Run, audits: Asked, project: Path) -> None:
    _own(FULL)
    (project / "ci").mkdir()
    (project / "ci" / "audit.toml").write_text('level = "graph"\n')
    blockaudit("inspect", "good", "--config", "ci/audit.toml")
    assert (audits[0]["level"], audits[0]["strict"]) == ("graph", False)
    for argv, says in (
        (["--config", "nowhere.toml"], "nowhere.toml: cannot be read: No such file or directory"),
        (["--config", "ci/audit.toml", "--no-config"], "--config and --no-config exclude each other"),
    ):
        outcome = blockaudit("inspect", "good", *argv)
        assert (outcome.status, outcome.err) == (2, f"blockaudit: error: {says}\n")


def test_the_nearest_one_up_to_the_root_of_the_repository(
    blockaudit: Run, audits: Asked, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own('level = "values"\n')
    _own('level = "graph"\n', project.parent)
    (project / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(project / "a" / "b")
    blockaudit("inspect", "good")
    # One that says nothing of us is passed over, and so is a mention.
    (project / "a" / "pyproject.toml").write_text('[project]\ndependencies = ["blockaudit"]\n')
    blockaudit("inspect", "good")
    (project / "a" / "pyproject.toml").write_text('[tool.blockaudit]\nlevel = "values,graph"\n')
    blockaudit("inspect", "good")
    (project / "blockaudit.toml").unlink()
    (project / "a" / "pyproject.toml").unlink()
    blockaudit("inspect", "good")
    assert [a["level"] for a in audits] == ["values", "values", "values,graph", "headers"]


def test_our_own_file_stands_before_the_shared_one(blockaudit: Run, audits: Asked) -> None:
    _own('level = "values"\n')
    Path("pyproject.toml").write_text('[tool.blockaudit]\nlevel = "graph"\n')
    blockaudit("inspect", "good")
    assert audits[0]["level"] == "values"


def test_paths_are_those_of_the_file(blockaudit: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(project)
    _own('manifest = "pinned.json"\nreport = "out.json"\n')
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    found = audited(blockaudit, "inspect", "../ckpt")
    assert (found.status, found.names) == (1, ["epsilon-mismatch"])
    assert found.report["manifest"]["id"] == "../pinned.json"
    assert (project / "out.json").is_file()
    assert not (project / "sub" / "out.json").exists()


def test_a_file_of_another_kind_is_not_parsed(blockaudit: Run, audits: Asked) -> None:
    Path("pyproject.toml").write_text("[tool.other\n")
    assert blockaudit("inspect", "good").status == 0


WRONG = [
    ('selct = "N"\n', 1, "no key 'selct': did you mean 'select'?"),
    ("\nallow_unverified = true\n", 2, "no key 'allow_unverified': did you mean 'allow-unverified'?"),
    ("colour = 1\n", 1, "no key 'colour': expected select, ignore"),
    ('strict = "yes"\n', 1, "strict: expected true or false, found 'yes'"),
    ("level = 3\n", 1, "level: expected a text, found 3"),
    ("level = ''\n", 1, "level: expected a text"),
    ("select = [1]\n", 1, "select: expected a text, found 1"),
    ("report = {}\n", 1, "report: expected a text"),
    ("waivers = 'none'\n", 1, "waivers: expected tables"),
    ("waivers = [1]\n", 1, "waivers: expected tables"),
    ('level = "deep"\n', 1, "level: unknown level 'deep': expected headers, values, graph"),
    ('level = "values,deep"\n', 1, "level: unknown level 'values,deep'"),
    ('strict = true\nformat = "yaml"\n', 2, "format: unknown format 'yaml': this release writes github, html"),
    ('report = ["a.json", "a.doc"]\n', 1, "report: cannot tell the report format of 'a.doc' by its suffix"),
    ('select = ["N", "X9"]\n', 1, "select: 'X9' names no rule: give a code (N201)"),
    ('ignore = "no-such-rule"\n', 1, "ignore: 'no-such-rule' names no rule"),
]


@pytest.mark.parametrize(("text", "line", "says"), WRONG)
def test_a_config_that_is_none(blockaudit: Run, audits: Asked, text: str, line: int, says: str) -> None:
    _own(text)
    outcome = blockaudit("inspect", "good")
    assert (outcome.status, outcome.out, audits) == (2, "", [])
    assert outcome.err.startswith(f"blockaudit: error: blockaudit.toml:{line}: ")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    Path("blockaudit.toml").unlink()
    Path("pyproject.toml").write_text(_tool(text))
    assert f"pyproject.toml:{line + 3}: " in blockaudit("inspect", "good").err


# What the parser says of a date that is none.
_NOISE = "Expected newline or end of document after a statement"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"level = \n", "not TOML: Invalid value (at line 1, column 9)"),
        (
            b"[[waivers]]\nexpires = 2026-12-32 # last\n",
            f"not TOML: {_NOISE} (at line 2, column 15); 2026-12-32 (line 2) is no date",
        ),
        (
            b"[[waivers]]\nexpires = 2026-1-05\n",
            f"not TOML: {_NOISE} (at line 2, column 15); 2026-1-05 (line 2) is no date",
        ),
        (b"level = '\xff'\n", "expected UTF-8"),
        (b"[tool]\nblockaudit = 3\n", "[tool.blockaudit]: expected a table"),
        (b"a = " + b"[" * 100_000, "not TOML"),
    ],
)
def test_a_file_that_is_no_toml(blockaudit: Run, audits: Asked, data: bytes, says: str) -> None:
    Path("blockaudit.toml").write_bytes(data)
    outcome = blockaudit("inspect", "good")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"blockaudit: error: blockaudit.toml: {says}")
    assert outcome.err.count("\n") == 1


def test_a_checkpoint_does_not_waive_its_own_faults(
    blockaudit: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = changed(project)
    _own("ignore = 'N'\n" + waiver(), source)
    (source / "pyproject.toml").write_text("[tool.blockaudit]\nignore = 'N'\n")
    (source / "sub").mkdir()
    # It may be a repository of its own: that is no reason to overlook the config file of those who audit it.
    (source / ".git").mkdir()
    for folder, name in ((project, "ckpt"), (source, "."), (source / "sub", ".."), (source / "sub", str(source))):
        monkeypatch.chdir(folder)
        outcome = blockaudit("inspect", name, "--manifest", str(project / "pinned.json"))
        assert outcome.status == 1, folder
        said = "blockaudit.toml lies in SOURCE and is not read" in outcome.err
        assert said is (folder != project)
    _own("ignore = 'N'\n", project)
    monkeypatch.chdir(source)
    assert blockaudit("inspect", ".", "--manifest", "../pinned.json").status == 0
    # Whoever names it has read it.
    assert blockaudit("inspect", ".", "--manifest", "../pinned.json", "--config", "blockaudit.toml").status == 0


def test_what_lies_beside_a_weight_file_comes_with_it(
    blockaudit: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = changed(project)
    _own("ignore = 'N'\n", source)
    monkeypatch.chdir(source)
    assert blockaudit("inspect", "model.safetensors", "--manifest", "../pinned.json").status == 1


def test_a_symlink_does_not_bring_it_in(blockaudit: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = changed(project)
    _own("ignore = 'N'\n", source)
    (project / "link").symlink_to(source)
    monkeypatch.chdir(project / "link")
    assert blockaudit("inspect", str(source), "--manifest", str(project / "pinned.json")).status == 1
    monkeypatch.chdir(project)
    (project / "blockaudit.toml").symlink_to(source / "blockaudit.toml")
    assert blockaudit("inspect", "link", "--manifest", "pinned.json").status == 1


def test_exit_statuses(blockaudit: Run, project: Path) -> None:
    """Warnings and what is unverified, by the file alone."""
    warned = family("llama", config(norm_scaling=2.0))(project / "warned")
    bare = family("llama")(project / "bare")
    (bare / "config.json").unlink()
    assert [blockaudit("inspect", s).status for s in (warned, bare)] == [0, 3]
    _own("strict = true\nallow-unverified = true\n")
    assert [blockaudit("inspect", s, "--no-strict").status for s in (warned, bare)] == [0, 0]
    assert [blockaudit("inspect", s).status for s in (warned, bare)] == [1, 1]  # config-missing is a warning
    assert blockaudit("inspect", "nowhere").status == 2


def test_the_schema_is_what_is_read() -> None:
    schema = resources.schema("config")
    Draft202012Validator.check_schema(schema)
    assert set(schema["properties"]) == set(_KEYS)
    assert set(schema["$defs"]["waiver"]["required"]) == set(WAIVER)
    example = {"select": ["N"], "report": "a.json", "waivers": [WAIVER]}
    Draft202012Validator(schema).validate(example)
    with pytest.raises(ValidationError, match="resaon"):
        Draft202012Validator(schema).validate({"waivers": [{**WAIVER, "resaon": "x"}]})


TEXT = """# level = 1
level = 1
[tool.blockaudit]
"strict" = true
[[tool.blockaudit.waivers]]
rule = "a"
[[ tool.blockaudit.waivers ]]
rule = "b"
[tool.blockaudit.waivers.scope]
subject = "x"
[other]
rule = "c"
"""


@pytest.mark.parametrize(
    ("table", "key", "number", "line"),
    [
        ("", "level", 0, 2),
        ("tool.blockaudit", "strict", 0, 4),
        ("tool.blockaudit", "waivers", 0, 5),
        ("tool.blockaudit.waivers", "", 1, 7),
        ("tool.blockaudit.waivers", "rule", 0, 6),
        ("tool.blockaudit.waivers", "rule", 1, 8),
        ("tool.blockaudit", "level", 0, 0),
        ("tool.blockaudit.waivers", "rule", 2, 0),
    ],
)
def test_lines(table: str, key: str, number: int, line: int) -> None:
    assert line_of(TEXT, table, key, number) == line
