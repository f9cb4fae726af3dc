"""`blockaudit convert`: a checkpoint moved into another layout, as a transaction."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from blockaudit import pipeline
from blockaudit.cli import completion, options, output
from blockaudit.cli.asked import Given, asked
from blockaudit.cli.audit import Presentation, audit_each
from blockaudit.cli.progress import progress_bar
from blockaudit.errors import RequestError
from blockaudit.records.report import Report

_WRITING = "Writing"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A checkpoint of this machine, as for inspect.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder to make. It must not be there.")],
    map_: Annotated[
        str,
        typer.Option(
            "--map",
            metavar="ID|FILE",
            help="A library map (meta_llama) or a .json/.yaml file.",
            autocompletion=completion.migration_map,
        ),
    ],
    source_config: Annotated[
        Path | None,
        typer.Option(
            "--source-config",
            metavar="FILE",
            help="JSON with the source's config, where it does not lie beside the weights.",
            show_default=False,
        ),
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="The way back: from the map's target to its source.")
    ] = False,
    max_shard_size: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Most bytes of tensors in one file (MB, GB, GiB).", rich_help_panel=_WRITING),
    ] = "5GB",
    no_fsync: Annotated[
        bool,
        typer.Option(
            "--no-fsync", help="Do not wait for the disk: a power cut may lose TARGET.", rich_help_panel=_WRITING
        ),
    ] = False,
    no_hash: Annotated[
        bool,
        typer.Option(
            "--no-hash", help="Take no hashes of weights, neither read nor written.", rich_help_panel=_WRITING
        ),
    ] = False,
    conform: Annotated[
        bool,
        typer.Option(
            "--conform",
            help="Run what was written beside SOURCE, and publish it only where both compute the same (needs torch).",
            rich_help_panel=_WRITING,
        ),
    ] = False,
    previous: Annotated[
        str | None,
        typer.Option(
            metavar="ARTIFACT",
            help="What rollback.json goes back to, where that is not SOURCE.",
            show_default=False,
            rich_help_panel=_WRITING,
        ),
    ] = None,
    format_name: options.FormatName = None,
    report: options.ReportPaths = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    strict: options.Strict = None,
    allow_unverified: options.AllowUnverified = None,
    baseline: options.Baseline = None,
    write_baseline: options.WriteBaseline = None,
    config: options.Config = None,
    no_config: options.NoConfig = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Convert a checkpoint by a migration map: proved on headers first, then written whole or not at all.

    TARGET is made by one rename when all of it is written, hashed and proved; a run that was ended is taken up by the
    same command. Exit status: 0 converted, 1 the map or a proof was refused and nothing is written, 2 not served.
    """
    given = Given(
        None, None, format_name, report, select, ignore, strict, allow_unverified, baseline, write_baseline, config,
        no_config,
    )  # fmt: skip
    ask = asked(given, [source], {"--map": map_, "--source-config": source_config}, quiet)
    writing = pipeline.Writing(size(max_shard_size), not no_fsync, not no_hash, conform, previous)
    output.check_report_paths(ask.report, [previous] if previous else [])
    _check_outside(ask.report, target)

    def run(name: str | None) -> Report:
        assert name is not None
        with progress_bar(not quiet) as progress:
            return pipeline.convert(
                name,
                target,
                map_=map_,
                config=source_config,
                reverse=reverse,
                writing=writing,
                select=ask.select,
                ignore=ask.ignore,
                strict=ask.strict,
                waivers=ask.waivers,
                baseline=ask.baseline,
                write_baseline=ask.write_baseline,
                progress=progress,
                remark=None if quiet else output.remark,
            )

    shown = Presentation(ask.format_name, ask.report, quiet, no_color, ask.allow_unverified)
    return audit_each([source], run, shown)


def _check_outside(reports: Sequence[Path], target: str) -> None:
    """Refuse a report in TARGET, which is whole and whose files are hashed. Raises RequestError."""
    real = Path(os.path.realpath(target))
    for path in reports:
        if real in (found := Path(os.path.realpath(path))).parents or real == found:
            raise RequestError(f"--report {str(path)!r} lies in TARGET {target!r}: name a place beside it")


def size(text: str) -> int:
    """`5GB` in bytes. Raises RequestError."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or float(found[1]) * unit < 1:
        raise RequestError(f"--max-shard-size {text!r}: expected a number of bytes, as 5GB, 500MB or 4GiB")
    return int(float(found[1]) * unit)
