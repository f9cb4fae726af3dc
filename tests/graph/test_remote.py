"""Code that comes with a checkpoint is named and not run, unless the user trusts it; nothing is ever fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit import pipeline
from blockaudit.records.report import Report
from tests.families import models
from tests.support.audit import inspect

CONFIG = """
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = "own"
"""
CODE = """
from pathlib import Path
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig
Path({marker!r}).write_text("run")
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.model.norm.variance_epsilon = 1e-3
"""
OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}


class Own:
    """A checkpoint whose config.json takes its class from modelling code beside it."""

    def __init__(self, folder: Path, **changed: Any) -> None:
        self.folder, self.marker = folder / "own", folder / "marker"
        models.build("llama").save_pretrained(self.folder)
        (self.folder / "configuration_own.py").write_text(CONFIG, encoding="utf-8")
        (self.folder / "modeling_own.py").write_text(CODE.format(marker=str(self.marker)), encoding="utf-8")
        path = self.folder / "config.json"
        given = {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": OWN, **changed}
        path.write_text(json.dumps({**json.loads(path.read_text()), **given}), encoding="utf-8")
        self.files = self.listed()

    def listed(self) -> list[Path]:
        return sorted(self.folder.rglob("*"))

    def audited(self, trusted: bool, manifest: str | None = "llama") -> Report:
        return pipeline.inspect(self.folder, level="graph", manifest=manifest, trust_remote_code=trusted)


@pytest.mark.parametrize("manifest", [None, "llama"])
def test_without_the_flag_it_is_not_run(manifest: str | None, tmp_path: Path) -> None:
    own = Own(tmp_path)
    report = own.audited(False, manifest)
    assert report.verdict == "unverified"
    (said,) = [f.message for f in report.findings if f.name == "graph-unclassified"]
    assert "modeling_own.OwnForCausalLM" in said
    assert "--trust-remote-code" in said
    assert "--candidate" in said
    assert not own.marker.exists()


def test_with_the_flag_its_own_class_is_what_is_read(tmp_path: Path) -> None:
    own = Own(tmp_path)
    report = own.audited(True)
    assert own.marker.exists()
    rows = {r.field: r.value("executed") for r in report.contract}
    assert rows["decoder.final_norm.epsilon"] == 1e-3
    assert report.verdict == "rejected"
    assert ("epsilon-mismatch", "decoder.final_norm") in {(f.name, f.subject) for f in report.findings}
    assert own.listed() == own.files, "something was written beside the checkpoint"


def test_the_flag_reaches_the_command_line(tmp_path: Path) -> None:
    own = Own(tmp_path)
    assert inspect(own.folder, "--level", "graph").status == 3
    assert not own.marker.exists()
    assert inspect(own.folder, "--level", "graph", "--manifest", "llama", "--trust-remote-code").status == 1
    assert own.marker.exists()


def test_the_headers_level_needs_no_code(tmp_path: Path) -> None:
    own = Own(tmp_path)
    assert inspect(own.folder, "--manifest", "llama", "--trust-remote-code").status in (0, 3)
    assert not own.marker.exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_another_repository_is_refused_always(trusted: bool, tmp_path: Path) -> None:
    own = Own(tmp_path, auto_map={"AutoModelForCausalLM": "other/repo--modeling_own.OwnForCausalLM"})
    report = own.audited(trusted)
    assert report.verdict == "unverified"
    (said,) = [f.message for f in report.findings if f.name == "graph-unclassified"]
    assert "other/repo" in said
    assert "nothing is downloaded" in said
    assert not own.marker.exists()


def test_a_class_that_the_library_ships_is_run_from_the_library(tmp_path: Path) -> None:
    own = Own(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"])
    assert own.audited(False).verdict == "accepted"
    assert not own.marker.exists()


@pytest.mark.parametrize(
    "reference", ["os.system", "..modeling_own.OwnForCausalLM", "modeling_own", "", "a b.C", "absent.C"]
)
def test_what_names_no_class_beside_the_checkpoint_is_one_line(reference: str, tmp_path: Path) -> None:
    own = Own(tmp_path, auto_map={"AutoModelForCausalLM": reference})
    report = own.audited(True)
    assert report.verdict == "unverified"
    assert all("\n" not in f.message for f in report.findings)
    assert not own.marker.exists()


GUARDED = """
import os, sys
def look(event, args):
    if event in ("socket.__new__", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        print("opened:", event, args, file=sys.stderr, flush=True)
        os._exit(99)
sys.addaudithook(look)
from blockaudit.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_no_socket_is_opened(tmp_path: Path) -> None:
    own, plain = Own(tmp_path), tmp_path / "plain"
    models.build("llama").save_pretrained(plain)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    given = ["inspect", str(own.folder), str(plain), "--level", "graph", "--manifest", "llama", "--trust-remote-code"]
    done = subprocess.run([sys.executable, "-c", GUARDED, *given], capture_output=True, text=True, env=env, check=False)
    assert "opened:" not in done.stderr, done.stderr
    assert own.marker.exists()
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "raise BaseException('first line\\nsecond line')",
        "raise SystemExit(0)",
        "return None",
        "y = super().forward(*args, **given); y.logits = 'x'; return y",
    ],
)
def test_whatever_trusted_code_does_is_no_traceback(body: str, tmp_path: Path) -> None:
    own = Own(tmp_path)
    forward = f"    def forward(self, *args, **given):\n        {body}\n"
    code = CODE.format(marker=str(own.marker)) + forward
    (own.folder / "modeling_own.py").write_text(code, encoding="utf-8")
    report = own.audited(True)
    assert report.verdict != "accepted"
    assert all("second line" not in f.message for f in report.findings)
