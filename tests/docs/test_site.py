"""The site of docs/: its reference pages are current, it builds without a warning, and its pages ask nobody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference pages as they would be written now."""
    folder = tmp_path_factory.mktemp("written")
    command = [sys.executable, "-m", "docs.generate", "--output", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    return folder


@pytest.mark.parametrize(
    "name",
    ["cli.md", "manifest-fields.md", "manifests.md", "map-library.md", "rules.md", "schemas.md", "specification.md"],
)
def test_reference_pages_are_current(written: Path, name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == (written / name).read_text(), "make reference"


def test_every_page_that_is_written_is_held(written: Path) -> None:
    held = test_reference_pages_are_current.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert sorted(p.name for p in written.iterdir()) == held


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "expected a folder that is there: make it first"),
        ("file", "expected a folder that is there: make it first"),
        ("taken/cli.md", "cli.md cannot be written: Is a directory"),
    ],
)
def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path, made: str | None, says: str) -> None:
    if made == "file":
        (tmp_path / "file").touch()
    elif made is not None:
        (tmp_path / made).mkdir(parents=True)
    folder = tmp_path / (made or "missing/folder").partition("/cli")[0]
    command = [sys.executable, "-m", "docs.generate", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"docs.generate: error: --output {folder}: {says}\n"


def test_the_command_line_is_whole(written: Path) -> None:
    from blockaudit.cli.commands import COMMANDS

    page = (written / "cli.md").read_text()
    assert {f"blockaudit {name}" for name in COMMANDS} <= set(re.findall(r"^## (.*)$", page, re.MULTILINE))
    for option in ("`--baseline` `FILE`", "`--strict`, `--no-strict`", "`--trace-out` `FILE.safetensors`", "`--pin`"):
        assert option in page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("furo", reason="make docs installs what builds the site")
    folder = tmp_path_factory.mktemp("site")
    # A proxy that nobody answers: a build that fetched something would fail.
    nobody = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-d",
            str(folder / "trees"),
            "docs",
            str(folder / "html"),
        ],
        cwd=ROOT,
        env=os.environ | nobody,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


def test_every_page_is_there_and_reached(site: Path) -> None:
    pages = {p.stem for p in (ROOT / "docs").glob("*.md")}
    assert pages <= {p.stem for p in site.glob("*.html")}
    front = (site / "index.html").read_text()
    assert all(f'href="{page}.html"' in front for page in pages - {"index"})


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["'](?:https?:)?//[^"']*""", re.IGNORECASE)
    styles = re.compile(r"""(?:url\(|@import\s*)["']?(?:https?:)?//""", re.IGNORECASE)
    for page in site.rglob("*.html"):
        assert loads.findall(page.read_text()) == [], page.name
    for sheet in site.rglob("*.css"):
        assert styles.findall(sheet.read_text()) == [], sheet.name
