"""Shell completion, by the protocol that the shells' scripts speak."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from blockaudit import resources
from blockaudit.rules import registry

ROOT = Path(__file__).parents[2]


def _run(environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "blockaudit", *argv],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _offered(line: str) -> list[str]:
    """What bash is offered at the end of a line."""
    words = shlex.split(line)
    cursor = len(words) if line.endswith(" ") else len(words) - 1
    done = _run({"_BLOCKAUDIT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(cursor)})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_and_options() -> None:
    assert {"inspect", "conform", "manifest", "explain"} <= set(_offered("blockaudit "))
    assert _offered("blockaudit manifest dr") == ["draft"]
    assert _offered("blockaudit inspect --str") == ["--strict"]


def test_rules() -> None:
    codes = [entry.rule.code for entry in registry.entries()]
    assert _offered("blockaudit explain ") == codes
    assert _offered("blockaudit explain epsilon-") == ["epsilon-mismatch"]
    assert _offered("blockaudit inspect --select N20") == [c for c in codes if c.startswith("N20")]
    assert _offered("blockaudit inspect --select N201,F101,K10") == [f"N201,F101,{c}" for c in codes if c[:3] == "K10"]
    assert _offered("blockaudit conform model --ignore K101,norm-m") == ["K101,norm-missing"]


def test_manifests() -> None:
    known = list(resources.manifest_ids())
    assert _offered("blockaudit inspect --manifest ") == known
    assert _offered("blockaudit manifest show gemma2") == ["gemma2"]
    # Nothing: the shell goes on to files.
    assert _offered("blockaudit inspect --manifest ./held") == []


def test_formats_and_levels() -> None:
    assert _offered("blockaudit inspect --format s") == ["sarif"]
    assert _offered("blockaudit rules --format ") == ["text", "json", "markdown"]
    assert _offered("blockaudit inspect --level v") == ["values", "values,graph"]


def test_sources_are_left_to_the_shell() -> None:
    assert _offered("blockaudit inspect fix") == []


def test_zsh_and_fish_are_told_what_a_rule_finds() -> None:
    asked = {"_TYPER_COMPLETE_ARGS": "blockaudit explain N201"}
    zsh = _run(asked | {"_BLOCKAUDIT_COMPLETE": "complete_zsh"})
    assert '"N201":"Two witnesses give different epsilons."' in zsh.stdout
    fish = asked | {"_BLOCKAUDIT_COMPLETE": "complete_fish"}
    assert _run(fish | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).stdout.startswith("N201\tTwo witnesses")
    # Fish asks first whether there is anything to offer, by the status.
    assert _run(fish | {"_TYPER_COMPLETE_FISH_ACTION": "is-args"}).returncode == 0
    nothing = fish | {"_TYPER_COMPLETE_FISH_ACTION": "is-args", "_TYPER_COMPLETE_ARGS": "blockaudit inspect fix"}
    assert _run(nothing).returncode == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_the_script_of_a_shell(shell: str) -> None:
    done = _run({}, "--show-completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"complete_{shell}" in done.stdout
    assert "_BLOCKAUDIT_COMPLETE" in done.stdout


def test_bash_loads_the_script(tmp_path: Path) -> None:
    """The whole way: the script that is printed, a line that is typed, the words that come back."""
    program = tmp_path / "blockaudit"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m blockaudit "$@"\n'
    )
    program.chmod(0o755)
    script = """
    eval "$(blockaudit --show-completion bash)"
    COMP_WORDS=(blockaudit inspect --manifest gemm) COMP_CWORD=3
    _blockaudit_completion blockaudit
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == [name for name in resources.manifest_ids() if name.startswith("gemm")], done.stderr


def test_installing_it(tmp_path: Path) -> None:
    done = _run({"HOME": str(tmp_path)}, "--install-completion", "fish")
    assert done.returncode == 0
    assert "complete_fish" in (tmp_path / ".config/fish/completions/blockaudit.fish").read_text()


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("")
    done = _run({"HOME": str(tmp_path)}, "--install-completion", "fish")
    assert done.returncode == 2
    assert done.stderr.startswith("blockaudit: error: cannot install the completion of fish: ")


def test_a_shell_that_nobody_knows() -> None:
    done = _run({}, "--show-completion", "tcsh")
    assert done.returncode == 2
    assert done.stderr == (
        "blockaudit: error: no completion for the shell 'tcsh': there is one for bash, zsh, fish, powershell, pwsh\n"
    )
