"""`blockaudit inspect`: reconcile what SOURCE stores with what its manifest declares."""

from __future__ import annotations

from typing import Annotated

import typer

from blockaudit import pipeline
from blockaudit.cli import options
from blockaudit.cli.audit import Presentation, audit_each
from blockaudit.cli.progress import progress_bar
from blockaudit.errors import RequestError
from blockaudit.records.report import Report

Level = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        help="How deep to look: headers (shapes, keys, config), values (every number as well), graph (the operators "
        "that the model code runs), or values,graph.",
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


def inspect(
    sources: Annotated[list[str] | None, options.SOURCE] = None,
    manifest: options.Manifest = None,
    level: Level = "headers",
    candidate: Candidate = None,
    trust_remote_code: options.TrustRemoteCode = False,
    format_name: options.FormatName = "text",
    report: options.ReportPaths = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    strict: options.Strict = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Reconcile what a checkpoint stores with what its manifest declares.

    With several SOURCEs the exit status is the worst of them: 2 over 1 over 3 over 0.
    """
    if not sources and candidate is None:
        raise RequestError("Missing argument 'SOURCE...' (try: blockaudit inspect --help)")

    def audit(source: str | None) -> Report:
        with progress_bar("values" in level and not quiet) as progress:
            return pipeline.inspect(
                source,
                manifest=manifest,
                level=level,
                candidate=candidate,
                trust_remote_code=trust_remote_code,
                select=options.codes(select),
                ignore=options.codes(ignore),
                strict=strict,
                allow_unverified=allow_unverified,
                progress=progress,
            )

    shown = Presentation(format_name, report or (), quiet, no_color, allow_unverified)
    return audit_each(sources or [None], audit, shown)
