from __future__ import annotations

import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "fixtures" / "tiny_llama"


def environment_at(folder: Path) -> Path:
    """What the install step would leave at `folder`, made from the environment of this test run."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text("\n".join([str(ROOT), *site.getsitepackages()]) + "\n")
    return folder


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_at(tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A repository whose job audits checkpoints: one that is sound, one cut short, one whose config.json is gone."""
    folder = tmp_path / "workspace"
    for name in ("models/good", "models/cut short", "models/open"):
        shutil.copytree(TINY, folder / name)
    weights = folder / "models/cut short/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    (folder / "models/open/config.json").unlink()
    # What a job must not import in place of the tool or of the standard library.
    for name in ("blockaudit.py", "json.py", "typer.py"):
        (folder / name).write_text("raise SystemExit('imported from the workspace')\n")
    return folder
