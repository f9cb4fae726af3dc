"""`blockaudit inspect`: reconcile what SOURCE stores with what its manifest declares."""

from __future__ import annotations

from typing import Annotated

import typer

from blockaudit import pipeline
from blockaudit.cli import completion, options, output
from blockaudit.cli.asked import Given, asked
from blockaudit.cli.audit import Presentation, audit_each
from blockaudit.cli.folders import ByFolder, folders_of
from blockaudit.cli.progress import progress_bar
from blockaudit.errors import RequestError
from blockaudit.records.report import Report
from blockaudit.report import formats

Level = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        show_default="headers",
        help="How deep to look: headers (shapes, keys, config), values (every number as well), graph (the operators "
        "that the model code runs), or values,graph.",
        autocompletion=completion.level,
    ),
]


Candidate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:NAME",
        help="With --level graph: your own module in place of the class that config.json names. The file is run. "
        "SOURCE may be left out.",
    ),
]


Base = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="SOURCE is a PEFT adapter: audit the function of it and this base model together.",
        show_default=False,
    ),
]


def inspect(
    sources: Annotated[list[str] | None, options.SOURCE] = None,
    manifest: options.Manifest = None,
    level: Level = None,
    base: Base = None,
    by_folder: ByFolder = False,
    candidate: Candidate = None,
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
    """Reconcile what a checkpoint stores with what its manifest declares.

    With several SOURCEs the exit status is the worst of them: 2 over 1 over 3 over 0.
    """
    if not sources and candidate is None:
        raise RequestError("Missing argument 'SOURCE...' (try: blockaudit inspect --help)")
    if base is not None and not sources:
        raise RequestError("--base is the model that SOURCE, an adapter, is added to: name the adapter")
    if sources and by_folder:
        sources = folders_of(sources)
        if not sources:
            return 0
    given = Given(
        manifest, level, format_name, report, select, ignore, strict, allow_unverified, baseline, write_baseline,
        config, no_config,
    )  # fmt: skip
    below = [base] if base is not None else []
    ask = asked(given, [*(sources or ()), *below], {"--candidate": options.file_of(candidate), "--base": base}, quiet)
    output.check_report_paths(ask.report, below)

    found = [(name, source, part) for source in sources or () for name, part in _parts(source)]
    parts = {name: (source, part) for name, source, part in found}

    def audit(name: str | None) -> Report:
        source, part = parts[name] if name is not None else (None, None)
        with progress_bar("values" in ask.level and not quiet) as progress:
            return pipeline.inspect(
                source,
                part=part,
                base=base,
                manifest=ask.manifest,
                level=ask.level,
                candidate=candidate,
                trust_remote_code=trust_remote_code,
                select=ask.select,
                ignore=ask.ignore,
                strict=ask.strict,
                allow_unverified=ask.allow_unverified,
                waivers=ask.waivers,
                baseline=ask.baseline,
                write_baseline=ask.write_baseline,
                pictures=formats.wants_pictures(ask.format_name, ask.report),
                progress=progress,
            )

    shown = Presentation(ask.format_name, ask.report, quiet, no_color, ask.allow_unverified)
    return audit_each([name for name, _, _ in found] or [None], audit, shown)


def _parts(source: str) -> list[tuple[str, str | None]]:
    """What is audited of a SOURCE, by the name that its report has: each text model of a folder with several."""
    models = pipeline.models_of(source)
    return [(f"{source.rstrip('/')}/{model}", model) for model in models] if len(models) > 1 else [(source, None)]
