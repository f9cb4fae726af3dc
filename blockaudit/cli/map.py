"""`blockaudit map`: list, show and check migration maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blockaudit import pipeline
from blockaudit.cli import completion, map_text, options, output
from blockaudit.cli.asked import Given, asked
from blockaudit.cli.audit import Presentation, audit_each
from blockaudit.errors import RequestError
from blockaudit.records.report import Report

app = typer.Typer(
    name="map",
    add_completion=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List, show and check migration maps.",
)

FormatName = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format on stdout: text or json.",
        autocompletion=completion.one_of("text", "json"),
    ),
]
Map = Annotated[
    str,
    typer.Argument(
        metavar="ID|FILE",
        help="A library id (meta_llama) or a .json/.yaml file.",
        autocompletion=completion.migration_map,
    ),
]
Reverse = Annotated[bool, typer.Option("--reverse", help="The way back: from the map's target to its source.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--source-config",
        metavar="FILE",
        help="JSON with the source's config, where it does not lie beside the weights.",
        show_default=False,
    ),
]


@app.command("list")
def list_(format_name: FormatName = "text") -> int:
    """List the maps of the library: id, from which manifest to which, evidence."""
    _check_format(format_name)
    rows = pipeline.list_maps()
    output.say(_json(rows) if format_name == "json" else map_text.listed(rows))
    return 0


@app.command()
def show(map_: Map, reverse: Reverse = False, format_name: FormatName = "text") -> int:
    """Show one map: both manifests, every rule with its operations, config, aliases, what is dropped and why."""
    _check_format(format_name)
    shown = pipeline.show_map(map_, reverse=reverse)
    output.say(_json(shown) if format_name == "json" else map_text.shown(shown))
    return 0


@app.command()
def check(
    map_: Map,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="SOURCE",
            help="The checkpoint that is to be moved: its headers are read, no weight. Default: what the map's source "
            "manifest expects.",
            show_default=False,
        ),
    ] = None,
    source_config: ConfigFile = None,
    reverse: Reverse = False,
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
    """Prove a map on headers: every key accounted for, every shape, layout, tie, norm, config value and the way back."""
    given = Given(
        None, None, format_name, report, select, ignore, strict, allow_unverified, baseline, write_baseline, config,
        no_config,
    )  # fmt: skip
    sources = [source] if source is not None else []
    ask = asked(given, sources, {"MAP": map_, "--source-config": source_config}, quiet)

    def audit(name: str | None) -> Report:
        return pipeline.check_map(
            map_,
            name,
            config=source_config,
            reverse=reverse,
            select=ask.select,
            ignore=ask.ignore,
            strict=ask.strict,
            waivers=ask.waivers,
            baseline=ask.baseline,
            write_baseline=ask.write_baseline,
        )

    shown = Presentation(ask.format_name, ask.report, quiet, no_color, ask.allow_unverified)
    return audit_each([source], audit, shown)


def _check_format(name: str) -> None:
    if name not in ("text", "json"):
        raise RequestError(f"unknown format {name!r}: map commands write text or json")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
