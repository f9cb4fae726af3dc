"""docs/cli.md: every command with its arguments and options, from the typer app itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from blockaudit.cli.commands import COMMANDS
from blockaudit.cli.lazy import load
from blockaudit.cli.main import app
from docs.generate.text import NOTICE, code, prose, table


def page() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    lines = ["# Command line", "", NOTICE.format(" from the commands themselves"), ""]
    lines += ["What the exit statuses mean: [Exit status](exit-status.md).", ""]
    lines += _options("blockaudit", root)
    for name, command in COMMANDS.items():
        lines += _command(f"blockaudit {name}", load(name, command), 2)
    return "\n".join(lines).rstrip() + "\n"


def _command(path: str, command: Any, depth: int) -> Iterator[str]:
    yield from (f"{'#' * depth} {path}", "")
    inner: dict[str, Any] = getattr(command, "commands", {})
    if inner:
        yield from (prose(command.help or ""), "")
        for name, one in inner.items():
            yield from _command(f"{path} {name}", one, depth + 1)
        return
    yield from ("```text", _usage(path, command), "```", "")
    for paragraph in (command.help or "").split("\n\n"):
        yield from (prose(" ".join(paragraph.split())), "")
    yield from _options(path, command)


def _usage(path: str, command: Any) -> str:
    arguments = [_metavar(p) for p in command.params if p.param_type_name == "argument"]
    return " ".join([path, "[OPTIONS]", *arguments])


def _options(path: str, command: Any) -> list[str]:
    """Arguments and options of one command, in the order of its help page."""
    rows = [[_names(p), _said(p)] for p in command.params if not getattr(p, "hidden", False)]
    return [*table([path.rpartition(" ")[2], "what it is"], rows), ""] if rows else []


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return code(_metavar(parameter))
    names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    return names if parameter.is_flag else f"{names} {code(_metavar(parameter))}"


def _metavar(parameter: Any) -> str:
    return parameter.metavar or (parameter.name or "").upper()


def _said(parameter: Any) -> str:
    # Help pages are rich's markup, in which a bracket that is one is escaped.
    said = prose((parameter.help or "").replace("\\[", "["))
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    wanted = parameter.show_default is not False and default not in (None, False, (), []) and not callable(default)
    return f"{said} Default: {code(str(default))}." if wanted and "efault" not in said else said
