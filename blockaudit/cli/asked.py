"""What an auditing command was asked, all told: the command line over the config file over what is usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from blockaudit.cli import options, output
from blockaudit.cli.config import Config, configured
from blockaudit.errors import RequestError
from blockaudit.records.suppression import Waiver

# An option and the file that it names; the file is read, so that nothing is written over it.
Inputs = Mapping[str, str | Path | None]


class Given(msgspec.Struct, frozen=True):
    """The shared options as they stand on the command line. None: not given."""

    manifest: str | None = None
    level: str | None = None
    format_name: str | None = None
    report: Sequence[Path] | None = None
    select: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    strict: bool | None = None
    allow_unverified: bool | None = None
    baseline: Path | None = None
    write_baseline: Path | None = None
    config: Path | None = None
    no_config: bool = False


class Asked(msgspec.Struct, frozen=True):
    """The shared options, settled."""

    manifest: str | None
    level: str
    format_name: str
    report: tuple[Path, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    strict: bool
    allow_unverified: bool
    waivers: tuple[Waiver, ...]
    baseline: Path | None
    write_baseline: Path | None


def asked(given: Given, sources: Sequence[str], inputs: Inputs, quiet: bool = False) -> Asked:
    """Settle the shared options, and refuse to write over what is read. Raises RequestError.

    inputs: files that other options of this command name.
    """
    config = configured(sources, given.config, given.no_config)
    if not quiet:
        for file in config.passed_over:
            output.remark(f"{file} lies in SOURCE and is not read: --config names it where it is yours")
    found = _over(given, config)
    _check_baselines(given, found, sources)
    read = {"--manifest": found.manifest, "--config": config.file, "--baseline": found.baseline, **inputs}
    written = [("--report", path) for path in found.report]
    if found.write_baseline is not None:
        output.check_report_paths([found.write_baseline], sources, "--write-baseline")
        written.append(("--write-baseline", found.write_baseline))
        # The baseline that the config file names is the one that is written again.
        read["--baseline"] = None
    output.check_written(written, read)
    return found


def _over(given: Given, config: Config) -> Asked:
    """The command line over the config file, option by option."""
    return Asked(
        manifest=given.manifest if given.manifest is not None else config.manifest,
        level=given.level if given.level is not None else config.level or "headers",
        format_name=given.format_name if given.format_name is not None else config.format or "text",
        report=tuple(given.report if given.report is not None else config.report or ()),
        select=options.codes(given.select) if given.select is not None else config.select or (),
        ignore=options.codes(given.ignore) if given.ignore is not None else config.ignore or (),
        strict=given.strict if given.strict is not None else config.strict or False,
        allow_unverified=given.allow_unverified
        if given.allow_unverified is not None
        else config.allow_unverified or False,
        waivers=config.waivers,
        baseline=given.baseline if given.baseline is not None or given.write_baseline is not None else config.baseline,
        write_baseline=given.write_baseline,
    )


def _check_baselines(given: Given, found: Asked, sources: Sequence[str]) -> None:
    if given.baseline is not None and given.write_baseline is not None:
        raise RequestError(
            "--baseline and --write-baseline exclude each other: an audit is held to the one that it writes"
        )
    if len(sources) > 1 and (found.baseline is not None or found.write_baseline is not None):
        raise RequestError("a baseline is of one SOURCE: audit each by itself, or leave it out with --no-config")
