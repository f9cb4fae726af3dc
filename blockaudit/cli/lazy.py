"""A command group that imports a command when it is run, and not before."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from blockaudit.cli.commands import COMMANDS, Command


class LazyGroup(TyperGroup):
    """Lists the table's commands as stubs; running one (or completing its options) swaps the stub for the command."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name, help=command.help, rich_help_panel=command.panel), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command behind `args[0]`."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load(name, COMMANDS[name]), rest


def load(name: str, command: Command) -> Any:
    """Import a command and make it one that the group can run."""
    module, _, attribute = command.target.partition(":")
    target: Any = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        target.command(name)(function)
    return typer.main.get_command(target)
