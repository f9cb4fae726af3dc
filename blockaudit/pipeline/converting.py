"""`convert`: a map that was proved on headers, carried out as a transaction; or the report of why it was not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import replace

from blockaudit import resources
from blockaudit.checkpoint import storage
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.manifest.load import LoadedManifest, read
from blockaudit.migrate.convert import failures
from blockaudit.migrate.convert.proof import NotEqualError, NotTwinsError, RefusedStepError
from blockaudit.migrate.convert.run import Progress
from blockaudit.migrate.convert.transaction import Outcome, Request
from blockaudit.migrate.convert.transaction import convert as carry_out
from blockaudit.migrate.load import LoadedMap
from blockaudit.migrate.plan import plan
from blockaudit.pipeline.conforming import NotConformError, conforming
from blockaudit.pipeline.mapping import Checked, checked, reported
from blockaudit.pipeline.reporting import Judging
from blockaudit.pipeline.suppress import suppression
from blockaudit.records.checkpoint import Checkpoint, Fault
from blockaudit.records.conversion import Conversion, MapUsed
from blockaudit.records.report import Report
from blockaudit.records.suppression import Waiver
from blockaudit.report import json_report
from blockaudit.rules import registry

# Called with a line that the user should see and no verdict rests on.
Remark = Callable[[str], None]


class Writing(msgspec.Struct, frozen=True):
    """How a target is written. `shard_bytes`: the most bytes of tensors in one file. `previous`: a SOURCE.

    `conform`: it is run beside the source before it gets its name, and not published where it computes something else.
    """

    shard_bytes: int
    fsync: bool = True
    hashes: bool = True
    conform: bool = False
    previous: str | None = None


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    map_: str,
    config: str | Path | None = None,
    reverse: bool = False,
    writing: Writing,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    strict: bool = False,
    waivers: Sequence[Waiver] = (),
    baseline: str | os.PathLike[str] | None = None,
    write_baseline: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    remark: Remark | None = None,
) -> Report:
    """Convert a checkpoint by a migration map into the folder `target`, which must not be there.

    map_: a library id or a file. config: a JSON file with the source's config, where it does not lie beside the
    weights. reverse: the way back. The report is of kind `conversion` where the target is there, whole, afterwards; of
    kind `rejection`, with nothing written, where the map or a proof is refused. Raises RequestError where the request
    could not be served: then the target is not there either, and the same call takes up what was written.
    """
    how = Judging(registry.chosen(select, ignore), strict, suppression(waivers, baseline, write_baseline))
    name = os.fspath(source)
    if storage.is_remote(name):
        raise RequestError(f"{name}: a conversion reads every weight: download it first, and name the folder")
    try:
        done = checked(map_, name, config, reverse=reverse)
        report = reported("conversion", done, how)
        if report.verdict != "accepted" or done.loaded is None or done.checkpoint is None:
            return replace(report, kind="rejection")
        request = _request(done.loaded, done, done.checkpoint, os.fspath(target), writing, progress)
        request = replace(request, document=partial(_document, report))
        _needs_torch(request)
        try:
            outcome = carry_out(request)
        except NotEqualError as error:
            return _rejected(done, how, failures.round_trip(error.found))
        except RefusedStepError as error:
            return _rejected(done, how, failures.refused(error))
        except NotTwinsError as error:
            return _rejected(done, how, failures.twins(error.found))
        except NotConformError as error:
            return replace(error.report, kind="rejection", verdict="rejected", subject=report.subject)
        _told(outcome, os.fspath(target), remark)
        return replace(report, conversion=outcome.conversion)
    finally:
        close_files()


def _request(
    loaded: LoadedMap,
    done: Checked,
    checkpoint: Checkpoint,
    target: str,
    writing: Writing,
    progress: Progress | None,
) -> Request:
    (work,) = done.works
    return Request(
        plan=plan(work),
        checkpoint=checkpoint,
        target=target,
        map=MapUsed(loaded.map.name, loaded.sha256, _text(loaded), loaded.reversed),
        manifests=(_named(work.source.loaded), _named(work.target.loaded)),
        most=writing.shard_bytes,
        durable=writing.fsync,
        hashing=writing.hashes,
        source_config=loaded.map.config_file,
        previous=None if writing.previous is None else _previous(writing.previous),
        conform=conforming(checkpoint.source) if writing.conform else None,
        progress=progress,
    )


def _needs_torch(request: Request) -> None:
    """Raises RequestError, before anything is written, where a step computes and torch is not installed."""
    computed = next((step for step in request.plan.steps if not step.copies), None)
    if computed is not None and find_spec("torch") is None:
        raise RequestError(
            f"{request.map.name}: rules[{computed.rule}] computes {computed.outputs[0]}, which needs torch: "
            "pip install 'blockaudit[torch]'"
        )


def _document(report: Report, conversion: Conversion) -> bytes:
    """What stands in TARGET: the report that is printed."""
    return json_report.render(replace(report, conversion=conversion)).encode()


def _named(loaded: LoadedManifest | None) -> tuple[str, str]:
    return ("", "") if loaded is None else (loaded.manifest.architecture_id, loaded.sha256)


def _previous(source: str) -> Checkpoint:
    """The artifact that a rollback goes back to. Raises RequestError where it is none, or not whole."""
    found = open_checkpoint(source, whole=True)
    bad = next((fault for fault in found.faults if fault.rule not in ("config-missing", "total-size-mismatch")), None)
    if bad is not None:
        raise RequestError(f"--previous {source}: it is no whole artifact: {bad.message}")
    return found


def _text(loaded: LoadedMap) -> str:
    """The map as it is written. Raises RequestError where it is not what was checked any more."""
    library = loaded.id in resources.map_ids()
    data = resources.map_path(loaded.id).read_bytes() if library else read(loaded.id)
    return data.decode()


def _rejected(done: Checked, how: Judging, flaw: Fault) -> Report:
    """The report of a proof that failed: nothing was written, and no waiver makes that a conversion."""
    report = reported("rejection", replace(done, flaws=(*done.flaws, flaw)), how)
    return replace(report, verdict="rejected")


def _told(outcome: Outcome, target: str, remark: Remark | None) -> None:
    if remark is None:
        return
    for line in outcome.remarks:
        remark(line)
    if outcome.was_there:
        remark(
            f"{target}: it was there already, this very conversion: every hash was compared, and nothing was written"
        )
