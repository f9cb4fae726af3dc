"""Options that every auditing command shares (contract section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from blockaudit.cli import completion

_RULES = "Rules"
_OUTPUT = "Output"
# Several generators are seeded with it and the next few numbers, each of which takes 64 bits.
LARGEST_SEED = 2**62

SOURCE = typer.Argument(
    metavar="SOURCE...",
    help="A folder, a .safetensors, a shard index .json, a .bin/.pt/.pth, a .gguf, a distributed checkpoint, or hf://org/name\\[@revision].",
    show_default=False,
)
Sources = Annotated[list[str], SOURCE]
Manifest = Annotated[
    str | None,
    typer.Option(
        metavar="ID|FILE",
        help="A library id (llama) or a .json/.yaml file. Default: chosen from config.json, else from the key set.",
        autocompletion=completion.manifest,
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
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format on stdout: text, json, junit, sarif, github, html or markdown.",
        show_default="text",
        autocompletion=completion.report_format,
        rich_help_panel=_OUTPUT,
    ),
]
ReportPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="PATH",
        help="Also write the report to PATH, whose suffix picks the format (.txt .json .html .xml .sarif .md). "
        "Repeatable.",
        rich_help_panel=_OUTPUT,
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CODE,...",
        help="Only these rules; prefixes allowed (N, N2).",
        autocompletion=completion.rules,
        rich_help_panel=_RULES,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CODE,...",
        help="All but these rules; prefixes allowed.",
        autocompletion=completion.rules,
        rich_help_panel=_RULES,
    ),
]
Strict = Annotated[
    bool | None,
    typer.Option("--strict/--no-strict", help="Warnings reject.", show_default=False, rich_help_panel=_RULES),
]
AllowUnverified = Annotated[
    bool | None,
    typer.Option(
        "--allow-unverified/--deny-unverified",
        help="Exit 0 where the audit is unverified.",
        show_default=False,
        rich_help_panel=_RULES,
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Findings that FILE already has do not count.", rich_help_panel=_RULES),
]
WriteBaseline = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write today's findings to FILE, and hold this audit to them.", rich_help_panel=_RULES
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read this config file. Default: the nearest blockaudit.toml or pyproject.toml with \\[tool.blockaudit].",
        show_default=False,
        rich_help_panel=_RULES,
    ),
]
NoConfig = Annotated[
    bool,
    typer.Option("--no-config", "--isolated", help="Read no config file (also: --isolated).", rich_help_panel=_RULES),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="The verdict and the findings only; no progress bars.", rich_help_panel=_OUTPUT),
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour (also: NO_COLOR).", rich_help_panel=_OUTPUT)]


def codes(given: Sequence[str] | None) -> tuple[str, ...]:
    """`--select N,K1 --select S` as `("N", "K1", "S")`."""
    return tuple(code.strip() for chunk in given or () for code in chunk.split(",") if code.strip())


def file_of(candidate: str | None) -> str | None:
    """The file that `--candidate` or `--reference` reads: of `FILE.py:NAME` the file, of a trace itself."""
    return None if candidate is None else candidate.partition(".py:")[0] + ".py" if ".py:" in candidate else candidate
