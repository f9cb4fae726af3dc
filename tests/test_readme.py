"""What the documents show is what happens: their commands are run, their manifest is loaded."""

from __future__ import annotations

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from blockaudit import pipeline
from blockaudit.manifest.check import check_manifest
from blockaudit.manifest.load import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
Place = Callable[[Path], Path]


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _examples(text: str) -> list[tuple[str, str]]:
    """Every command that a `console` block shows, with what is shown of its output."""
    parts = [
        part for block in _blocks(text, "console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part
    ]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The folder in which a reader of a document types its commands, one after the other."""

    @cache
    def of(document: Path) -> Path:
        folder = tmp_path_factory.mktemp(document.stem)
        shutil.copytree(ROOT / "fixtures", folder / "fixtures")
        (folder / "build").mkdir()
        return folder

    return of


EXAMPLES = [
    pytest.param(document, command, shown, id=f"{document.name}: {command}")
    for document in DOCUMENTS
    for command, shown in _examples(document.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("document", "command", "shown"), EXAMPLES)
def test_a_command_prints_what_a_document_shows(checkout: Place, document: Path, command: str, shown: str) -> None:
    script = f'blockaudit() {{ "$PYTHON" -m blockaudit "$@"; }}; {command}'
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=checkout(document),
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stderr == ""
    _assert_shown(shown, done.stdout)


def _assert_shown(shown: str, printed: str) -> None:
    """Lines of the document are lines of the output, in order; `...` stands for any number of lines left out."""
    pieces = re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)
    assert printed.startswith(pieces[0].rstrip("\n") if pieces[1:] else pieces[0])
    position = len(pieces[0])
    for piece in pieces[1:]:
        found = f"\n{printed}".find(f"\n{piece}", max(position - 1, 0))
        assert found >= 0, f"not printed after what is shown before it:\n{piece}"
        position = found + len(piece)
    if shown and pieces[-1]:
        assert position == len(printed)


def test_python_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for block in _blocks(README, "pycon"):
        test = doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0)
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_what_is_said_to_be_missing_is_missing() -> None:
    from blockaudit.cli.commands import COMMANDS

    missing = README.partition("## Not in this release")[2].partition("\n## ")[0]
    assert not set(re.findall(r"`([a-z]+)`", missing)) & set(COMMANDS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_the_manifest_of_the_documentation(tmp_path: Path) -> None:
    """It loads, contradicts itself nowhere, and describes the shipped checkpoint."""
    (block,) = _blocks((ROOT / "docs" / "manifest.md").read_text(encoding="utf-8"), "json")
    file = tmp_path / "example.json"
    file.write_text(block)
    assert check_manifest(load(str(file)).manifest) == []
    report = pipeline.inspect(ROOT / "fixtures" / "tiny_llama", manifest=str(file))
    assert (report.verdict, report.findings) == ("accepted", ())


def test_snippets_of_the_documentation_are_of_the_library() -> None:
    """`Mixtral`-like snippets name a library manifest, and hold what it holds."""
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^<!-- (\w+): ([\w.\[\]]+) -->\n```jsonc\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert snippets
    for name, path, snippet in snippets:
        found = json.loads((ROOT / "manifests" / f"{name}.json").read_text(encoding="utf-8"))
        for step in re.findall(r"\w+", path):
            found = found[int(step)] if step.isdigit() else found[step]
        assert json.loads(snippet) == found
