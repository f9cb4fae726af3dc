"""`blockaudit map`: list, show, check, draft and import migration maps."""

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
    help="List, show, check, draft and import migration maps.",
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
    """Prove a map on headers: every key accounted for, shapes, layouts, ties, norms, config values and the way back."""
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


OutputFile = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Where to write it; default: stdout.")
]
UNDECIDED = 3


@app.command()
def draft(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The checkpoint to be moved: its headers are read.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET_MANIFEST",
            help="The manifest that it is to have: a library id (llama) or a file.",
            autocompletion=completion.manifest,
        ),
    ],
    source_manifest: Annotated[
        str | None,
        typer.Option(
            "--source-manifest",
            metavar="ID|FILE",
            help="The manifest that SOURCE has. Default: by its config, else by its keys.",
            show_default=False,
            autocompletion=completion.manifest,
        ),
    ] = None,
    source_config: ConfigFile = None,
    output_file: OutputFile = None,
) -> int:
    """Draft the map from SOURCE to a manifest: what manifests and shapes prove. What they do not has no rule.

    Exit status: 0 the map is whole and passes `map check`, 3 something is undecided (listed on stderr), 2 on errors.
    """
    if output_file is not None:
        output.check_report_paths([output_file], [source, target], "--output")
    drafted = pipeline.draft_map(source, target, source_manifest=source_manifest, source_config=source_config)
    return _written(drafted, output_file)


@app.command("import")
def import_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|transformers:MODEL_TYPE",
            help="A file of patterns and replacements, or transformers' own mapping of a model type.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="ID|FILE", help="The manifest of the keys that it reads.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="ID|FILE", help="The manifest of the keys that it writes.", show_default=False
        ),
    ] = None,
    output_file: OutputFile = None,
) -> int:
    """Read a conversion mapping that others keep into a map. What no operation says has no rule.

    Exit status: as for draft.
    """
    if output_file is not None:
        output.check_report_paths([output_file], [what], "--output")
    return _written(pipeline.import_map(what, source=source, target=target), output_file)


def _written(drafted: pipeline.MapDraft, output_file: Path | None) -> int:
    """Tell what is open, write the map, and say by the status whether it is whole."""
    for line in drafted.remarks:
        output.remark(line)
    for line in drafted.undecided:
        output.remark(f"undecided: {line}")
    for line in drafted.refused:
        output.remark(f"map check would refuse: {line}")
    for line in drafted.hints:
        output.remark(f"hint: {line}")
    text = map_text.written(drafted.map)
    if output_file is None:
        output.say(text)
    else:
        output.write_report(output_file, text, "--output")
    return 0 if drafted.decided else UNDECIDED


def _check_format(name: str) -> None:
    if name not in ("text", "json"):
        raise RequestError(f"unknown format {name!r}: map commands write text or json")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
