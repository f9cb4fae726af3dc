"""Shell completion: the script that a shell loads, and the values that it is then offered.

A shell asks by running `blockaudit` with `_BLOCKAUDIT_COMPLETE` set. Whatever a completer needs is imported when it is
asked, and a command line that nobody completes pays for none of it. typer offers its completion as two options that
take the shell they run in; ours take its name, and so use the parts (typer is held below 0.29, and a test runs them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer

from blockaudit.cli import output
from blockaudit.errors import RequestError

PROGRAM = "blockaudit"
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_ASKED = "_BLOCKAUDIT_COMPLETE"
# A value, and what is said of it where the shell shows that (zsh, fish).
Offer = tuple[str, str]


def wanted() -> bool:
    """Whether it is a shell that runs this command line, to complete it."""
    return bool(os.environ.get(_ASKED))


def complete(command: Any) -> int:
    """Answer the shell; the status is part of the answer (fish asks whether there is anything to offer)."""
    from typer import completion

    completion.completion_init()  # pyright: ignore[reportPrivateImportUsage]
    try:
        command.main([], prog_name=PROGRAM, complete_var=_ASKED)
    except SystemExit as answered:
        return answered.code if isinstance(answered.code, int) else 0
    return 0


def _show(shell: str | None) -> None:
    if shell is None:
        return
    from typer import completion

    _check(shell)
    make = completion.get_completion_script  # pyright: ignore[reportPrivateImportUsage]
    script = make(prog_name=PROGRAM, complete_var=_ASKED, shell=shell)
    output.say(script + "\n")
    raise typer.Exit


def _install(shell: str | None) -> None:
    if shell is None:
        return
    from typer import completion

    _check(shell)
    install = completion.install  # pyright: ignore[reportPrivateImportUsage]
    try:
        _, path = install(shell=shell, prog_name=PROGRAM, complete_var=_ASKED)
    except OSError as error:
        raise RequestError(f"cannot install the completion of {shell}: {error}") from error
    output.say(f"installed in {path}: a new {shell} has it\n")
    raise typer.Exit


def _check(shell: str) -> None:
    if shell not in SHELLS:
        raise RequestError(f"no completion for the shell {shell!r}: there is one for {', '.join(SHELLS)}")


def one_of(*values: str) -> Callable[[str], list[str]]:
    """A completer that offers these values."""

    def offer(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return offer


def rule(incomplete: str) -> list[Offer]:
    """One rule: its code, or (once a lower-case letter is typed) its name."""
    return [(value, summary) for value, summary in _rules(incomplete) if value.startswith(incomplete)]


def rules(incomplete: str) -> list[Offer]:
    """Several rules, parted by commas: the last of them is completed."""
    before, comma, last = incomplete.rpartition(",")
    return [(before + comma + value, summary) for value, summary in rule(last)]


def _rules(incomplete: str) -> Iterator[Offer]:
    from blockaudit.rules import registry
    from blockaudit.rules.documentation import documentation

    for entry in registry.entries():
        name = entry.rule.name if incomplete[:1].islower() else entry.rule.code
        yield name, documentation(entry).summary.replace("`", "")


def manifest(incomplete: str) -> list[str]:
    """Ids of the library. Where none begins so, the shell goes on to files."""
    from blockaudit import resources

    return [name for name in resources.manifest_ids() if name.startswith(incomplete)]


def migration_map(incomplete: str) -> list[str]:
    """Ids of the library's maps. Where none begins so, the shell goes on to files."""
    from blockaudit import resources

    return [name for name in resources.map_ids() if name.startswith(incomplete)]


def report_format(incomplete: str) -> list[str]:
    """Formats of a report."""
    from blockaudit.report import formats

    return one_of(*formats.available())(incomplete)


def level(incomplete: str) -> list[str]:
    """Levels of `inspect`."""
    return one_of("headers", "values", "graph", "values,graph")(incomplete)


def _option(name: str, callback: Callable[[str | None], None], help_text: str) -> Any:
    shells: Sequence[str] = SHELLS
    return typer.Option(
        name,
        metavar="SHELL",
        callback=callback,
        is_eager=True,
        help=help_text,
        autocompletion=one_of(*shells),
        rich_help_panel="Shell completion",
    )


Show = Annotated[
    str | None, _option("--show-completion", _show, "Print the completion script of bash, zsh, fish or powershell.")
]
Install = Annotated[str | None, _option("--install-completion", _install, "Install it for your user.")]
