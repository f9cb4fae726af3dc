"""`blockaudit conform`: a candidate's numbers, held against the manifest executed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from blockaudit import pipeline
from blockaudit.cli import options, output
from blockaudit.cli.asked import Given, asked
from blockaudit.cli.audit import Presentation, audit_each
from blockaudit.cli.progress import progress_bar
from blockaudit.errors import RequestError
from blockaudit.records.report import Report
from blockaudit.report import formats

_RUN = "Run"


def _option(help_text: str, metavar: str, *names: str) -> typer.models.OptionInfo:
    return typer.Option(*names, metavar=metavar, help=help_text, rich_help_panel=_RUN)


def conform(
    sources: Annotated[list[str], options.SOURCE],
    manifest: options.Manifest = None,
    candidate: Annotated[
        str,
        _option(
            "The implementation under test: the class that config.json names (hf), your own FILE.py:NAME (the file is "
            "run), or a recorded trace.",
            "hf|FILE.py:NAME|TRACE",
        ),
    ] = "hf",
    reference: Annotated[
        str,
        _option("What it is held to: the manifest executed, the Hugging Face class, or a trace.", "decoder|hf|TRACE"),
    ] = "decoder",
    mode: Annotated[
        str,
        _option(
            "local: operator by operator on the candidate's own inputs; layer: each layer on the reference's state; "
            "end-to-end: both run free; all.",
            "MODE",
        ),
    ] = "all",
    layers: Annotated[str | None, _option("Compare these layers only (4:8 is 4 to 7).", "A:B")] = None,
    device: Annotated[str, _option("auto, cpu, cuda or cuda:1.", "DEVICE")] = "auto",
    dtype: Annotated[
        str,
        _option("The dtype that is judged: checkpoint, float32, bfloat16 or float16. float32 localises.", "DTYPE"),
    ] = "checkpoint",
    batch: Annotated[int, _option("Sequences of random tokens.", "N")] = 2,
    seq_len: Annotated[
        int | None, _option("Tokens in each (default: 128, or as many as the model has positions).", "N")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=options.LARGEST_SEED,
            help="Of the random tokens and probe rows.",
            rich_help_panel=_RUN,
        ),
    ] = 0,
    tokens: Annotated[str | None, _option("Token ids to run instead: .json, .npy or .safetensors.", "FILE")] = None,
    tolerance: Annotated[str | None, _option("A tolerance policy, .json or .yaml.", "FILE")] = None,
    trace_out: Annotated[Path | None, _option("Write the candidate's trace here.", "FILE.safetensors")] = None,
    repro: Annotated[
        Path | None, _option("Write the smallest thing that shows the first divergence into this folder.", "DIR")
    ] = None,
    algebra: Annotated[
        bool, typer.Option("--algebra", help="Check the residual algebra as well.", rich_help_panel=_RUN)
    ] = False,
    trust_remote_code: options.TrustRemoteCode = False,
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
    """Run a candidate beside the manifest, executed, and compare every site of every layer.

    The first divergent operator is named, and the numbers are made to say why.
    """
    if len(sources) > 1 and (trace_out is not None or repro is not None):
        raise RequestError("--trace-out and --repro take one SOURCE")
    if trace_out is not None:
        output.check_report_paths([trace_out], sources, "--trace-out")
    if repro is not None:
        output.check_report_paths([repro / "repro.py"], sources, "--repro")

    given = Given(
        manifest, None, format_name, report, select, ignore, strict, allow_unverified, baseline, write_baseline,
        config, no_config,
    )  # fmt: skip
    read = {
        "--candidate": options.file_of(candidate), "--reference": options.file_of(reference), "--tokens": tokens,
        "--tolerance": tolerance,
    }  # fmt: skip
    ask = asked(given, sources, read, quiet or pipeline.follows())
    if trace_out is not None:
        output.check_written([("--trace-out", trace_out)], {"--manifest": ask.manifest, **read})

    def audit(source: str | None) -> Report:
        with progress_bar(not quiet and not pipeline.follows(), "layers") as progress:
            return pipeline.conform(
                source or "",
                manifest=ask.manifest,
                candidate=candidate,
                reference=reference,
                mode=mode,
                layers=layers,
                device=device,
                dtype=dtype,
                batch=batch,
                seq_len=seq_len,
                seed=seed,
                tokens=tokens,
                tolerance=tolerance,
                trace_out=trace_out,
                repro=repro,
                algebra=algebra,
                trust_remote_code=trust_remote_code,
                select=ask.select,
                ignore=ask.ignore,
                strict=ask.strict,
                waivers=ask.waivers,
                baseline=ask.baseline,
                write_baseline=ask.write_baseline,
                pictures=formats.wants_pictures(ask.format_name, ask.report),
                progress=progress,
            )

    if pipeline.follows():
        # torchrun's other ranks compare their layers; the first one tells what all of them found.
        for source in sources:
            with suppress(RequestError):
                audit(source)
        return 0
    return audit_each(sources, audit, Presentation(ask.format_name, ask.report, quiet, no_color, ask.allow_unverified))
