"""The page before an HTML checker: content models, attributes and ARIA, which a parser does not look at."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from blockaudit.report import html
from tests.report import samples
from tests.report.html import pages

# A title's length is counted as it is escaped.
RULES = '{"root": true, "extends": ["html-validate:recommended"], "rules": {"long-title": "off"}}'
CHECKER = os.environ.get("HTML_VALIDATE") or shutil.which("html-validate")


@pytest.mark.skipif(CHECKER is None, reason="html-validate is not installed (.ci/run installs it)")
def test_a_checker_has_nothing_to_say(tmp_path: Path) -> None:
    shown = {"hostile": [pages.HOSTILE], "faulty": [pages.FAULTY], "several": [samples.ACCEPTED, pages.HOSTILE]}
    for name, reports in shown.items():
        (tmp_path / f"{name}.html").write_text(html.render_many(reports), encoding="ascii")
    (tmp_path / ".htmlvalidate.json").write_text(RULES)
    done = subprocess.run([str(CHECKER), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
