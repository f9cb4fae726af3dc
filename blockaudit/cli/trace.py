"""`blockaudit trace`: traces as files, so that another runtime can be the candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blockaudit import pipeline
from blockaudit.cli import completion, options, output, trace_text
from blockaudit.errors import RequestError
from blockaudit.report.escape import escape

app = typer.Typer(
    name="trace",
    add_completion=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Record, compare and show trace files.",
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
DIVERGENT = 1


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace file.")],
    format_name: FormatName = "text",
) -> int:
    """Show what a trace file holds: every site with its shape, dtype, RMS and non-finite count."""
    _check_format(format_name)
    metadata, sites = pipeline.trace_sites(file)
    if format_name == "json":
        output.say(_json(trace_text.listed_data(file, metadata, sites)))
    else:
        output.say(trace_text.listed(metadata, sites))
    return 0


@app.command()
def compare(
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="The trace under test.")],
    reference: Annotated[str, typer.Argument(metavar="REFERENCE", help="The trace that it is held to.")],
    tolerance: Annotated[
        str | None, typer.Option(metavar="FILE", help="A tolerance policy (.json or .yaml); docs/traces.md.")
    ] = None,
    format_name: FormatName = "text",
    no_color: options.NoColor = False,
) -> int:
    """Compare two trace files site by site, and name the first divergence.

    Sites that one of them lacks are listed and not judged. Exit status: 0 all within tolerance, 1 a divergence, 2 where
    the two cannot be compared.
    """
    _check_format(format_name)
    found = pipeline.compare_traces(candidate, reference, tolerance)
    for remark in found.remarks:
        output.remark(remark)
    if format_name == "json":
        output.say(_json(trace_text.compared_data(found)))
    else:
        output.say(trace_text.compared(found, output.wants_color(no_color)))
    return 0 if found.first is None else DIVERGENT


@app.command()
def record(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A checkpoint, as for conform.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.safetensors", help="Where the trace is written.")],
    candidate: Annotated[
        str,
        typer.Option(
            metavar="hf|FILE.py:NAME",
            help="Whose trace: that of the class that config.json names (hf), or of your own. The file is run.",
        ),
    ] = "hf",
    manifest: options.Manifest = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:i]", help="Where it is run.")] = "auto",
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="checkpoint, float32, bfloat16 or float16.")
    ] = "checkpoint",
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of random tokens.")] = 2,
    seq_len: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens in a row (default: 128, or as many as the model has positions)."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=options.LARGEST_SEED, help="Of the random tokens.")] = 0,
    tokens: Annotated[
        str | None, typer.Option(metavar="FILE", help="Token ids (.json, .npy or .safetensors) instead.")
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="A:B", help="Only these layers.")] = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> int:
    """Run a candidate end to end and write every canonical site, its tokens and their hash to a trace file."""
    output.check_report_paths([out], [source], "--out")
    pipeline.record_trace(
        source,
        out=out,
        candidate=candidate,
        manifest=manifest,
        device=device,
        dtype=dtype,
        batch=batch,
        seq_len=seq_len,
        seed=seed,
        tokens=tokens,
        layers=layers,
        trust_remote_code=trust_remote_code,
    )
    return 0


def _check_format(name: str) -> None:
    if name not in ("text", "json"):
        raise RequestError(f"unknown format {escape(name)!r}: trace commands write text or json")


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=True) + "\n"
