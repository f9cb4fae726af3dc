"""Options that every auditing command shares (contract section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

_RULES = "Rules"
_OUTPUT = "Output"

SOURCE = typer.Argument(
    metavar="SOURCE...",
    help="A folder, a .safetensors, a shard index .json, a .bin/.pt/.pth, or hf://org/name\\[@revision].",
    show_default=False,
)
Sources = Annotated[list[str], SOURCE]
Manifest = Annotated[
    str | None,
    typer.Option(
        metavar="ID|FILE",
        help="A library id (llama) or a .json/.yaml file. Default: chosen from config.json, else from the key set.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="With --level graph: run modelling code from SOURCE's own folder, where config.json takes its class from "
        "it. Nothing is downloaded.",
    ),
]
FormatName = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="Format on stdout: text or json.", rich_help_panel=_OUTPUT)
]
ReportPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="PATH",
        help="Also write the report to PATH, whose suffix picks the format. Repeatable.",
        rich_help_panel=_OUTPUT,
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(metavar="CODE,...", help="Only these rules; prefixes allowed (N, N2).", rich_help_panel=_RULES),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="CODE,...", help="All but these rules; prefixes allowed.", rich_help_panel=_RULES),
]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings reject.", rich_help_panel=_RULES)]
AllowUnverified = Annotated[
    bool, typer.Option("--allow-unverified", help="Exit 0 where the audit is unverified.", rich_help_panel=_RULES)
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="The verdict and the findings only; no progress bars.", rich_help_panel=_OUTPUT),
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour (also: NO_COLOR).", rich_help_panel=_OUTPUT)]


def codes(given: Sequence[str] | None) -> tuple[str, ...]:
    """`--select N,K1 --select S` as `("N", "K1", "S")`."""
    return tuple(code.strip() for chunk in given or () for code in chunk.split(",") if code.strip())
