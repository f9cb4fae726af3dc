"""`blockaudit manifest`: list, show, check, compare, draft and import manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blockaudit import resources
from blockaudit.cli import completion, manifest_text, output
from blockaudit.errors import RequestError
from blockaudit.manifest import diff as differences
from blockaudit.manifest import load
from blockaudit.manifest.show import describe, summary
from blockaudit.manifest.wiring import wiring
from blockaudit.report.escape import escape
from blockaudit.report.wiring import svg
from blockaudit.report.wiring.layout import layout
from blockaudit.report.wiring.text import render as drawn

app = typer.Typer(
    name="manifest",
    add_completion=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List, show, check, compare, draft and import manifests.",
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
Id = Annotated[
    str,
    typer.Argument(
        metavar="ID|FILE", help="A library id (llama) or a .json/.yaml file.", autocompletion=completion.manifest
    ),
]
DIFFERENT, UNSERVED = 1, 2
_WHO = ("manifest commands write", "manifest show writes")


@app.command("list")
def list_(format_name: FormatName = "text") -> int:
    """List the manifests of the library: id, model types, block equation, evidence."""
    _check_format(format_name)
    rows: list[dict[str, Any]] = []
    for name in resources.manifest_ids():
        manifest = load.library(name).manifest
        rows.append(
            {
                "id": name,
                "model_types": manifest.match.model_types,
                "equation": summary(manifest),
                "evidence_label": manifest.evidence_label,
            }
        )
    output.say(_json(rows) if format_name == "json" else manifest_text.listed(rows))
    return 0


@app.command()
def show(
    manifest: Id,
    format_name: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text, json, or svg: the wiring alone, as a picture.")
    ] = "text",
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write it; default: stdout.")
    ] = None,
) -> int:
    """Show one manifest: its equation, wiring, norms, dimensions, keys and ties."""
    _check_format(format_name, "text", "json", "svg")
    if output_file is not None:
        output.check_report_paths([output_file], [manifest], "--output")
    loaded = load.load(manifest)
    shown = {"id": loaded.id, "sha256": loaded.sha256, **describe(loaded.manifest)}
    if format_name == "json":
        text = _json(shown)
    else:
        drawing = layout(wiring(loaded.manifest))
        plain = output_file is None and not output.draws_boxes()
        text = svg.render(drawing) if format_name == "svg" else manifest_text.shown(shown, drawn(drawing, plain))
    if output_file is None:
        output.say(text)
    else:
        output.write_report(output_file, text, "--output")
    return 0


@app.command()
def check(
    manifests: Annotated[list[str], typer.Argument(metavar="ID|FILE...", help="Manifests of any kind.")],
    format_name: FormatName = "text",
) -> int:
    """Check manifests for what their schema cannot see.

    Exit status: 0 clean, 1 with findings, 2 where a file cannot be read or is not valid.
    """
    _check_format(format_name)
    rows: list[dict[str, Any]] = []
    status = 0
    for name in manifests:
        try:
            kind, found = _findings(name)
        except RequestError as error:
            output.complain(str(error))
            status = UNSERVED
            continue
        rows.append({"manifest": name, "kind": kind, "findings": found})
        status = max(status, 1 if found else 0)
    output.say(_json(rows) if format_name == "json" else manifest_text.checked(rows))
    return status


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A library id or a file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    format_name: FormatName = "text",
) -> int:
    """Say in which contract fields two manifests differ, and whether that changes the function.

    Values are compared under each manifest's own defaults and pins. Exit status: 0 the same function, 1 another.
    """
    _check_format(format_name)
    one, two = load.load(a), load.load(b)
    found = differences.compare(one.manifest, two.manifest)
    if format_name == "json":
        output.say(_json(manifest_text.compared_data(one.id, two.id, found)))
    else:
        output.say(manifest_text.compared(one.id, two.id, found))
    return 0 if found.same_function else DIFFERENT


@app.command()
def draft(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A checkpoint, as for inspect.")],
    level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="What to draft from: headers, or graph (default where torch is installed)."),
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Freeze every value that is bound to config.json.")] = False,
    candidate: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Your own module, which has to confirm the manifest in place of the class that config.json names. "
            "The file is run.",
        ),
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write it; default: stdout.")
    ] = None,
) -> int:
    """Draft the manifest that SOURCE itself supports.

    From its headers and config.json; of a model type that the library has, the library's manifest made its own, and
    confirmed by the operators that the model code runs where torch is installed.
    """
    if output_file is not None:
        output.check_report_paths([output_file], [source], "--output")
    from blockaudit import pipeline
    from blockaudit.manifest.draft import encode

    result = pipeline.draft(source, pin=pin, level=level, candidate=candidate)
    for remark in result.remarks:
        output.remark(remark)
    text = encode(result.manifest)
    if output_file is None:
        output.say(text)
    else:
        output.write_report(output_file, text, "--output")
    return 0


@app.command("import")
def import_(
    what: Annotated[str, typer.Argument(metavar="FILE", help="A mergekit architecture file: JSON or YAML.")],
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write it; default: stdout.")
    ] = None,
) -> int:
    """Read mergekit's description of an architecture into a manifest: its keys and ties, and no claim on the block.

    What the file leaves open, and what a manifest cannot hold, is told on stderr.
    """
    if output_file is not None:
        output.check_report_paths([output_file], [what], "--output")
    from blockaudit import pipeline
    from blockaudit.manifest.draft import encode

    result = pipeline.import_manifest(what)
    for remark in result.remarks:
        output.remark(remark)
    if output_file is None:
        output.say(encode(result.manifest))
    else:
        output.write_report(output_file, encode(result.manifest), "--output")
    return 0


def _findings(name: str) -> tuple[str, list[str]]:
    from blockaudit.manifest.check import check as contradictions
    from blockaudit.manifest.check import check_manifest

    if name in resources.manifest_ids():
        return "block_manifest", check_manifest(load.library(name).manifest)
    from blockaudit.manifest.validate import any_manifest

    kind, found = any_manifest(load.read(name), name)
    return kind, contradictions(found)


def _check_format(name: str, *formats: str) -> None:
    known = formats or ("text", "json")
    if name not in known:
        written = f"{', '.join(known[:-1])} or {known[-1]}"
        raise RequestError(f"unknown format {escape(name)!r}: {_WHO[bool(formats)]} {written}")


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=True, default=str) + "\n"
