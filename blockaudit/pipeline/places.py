"""Where to look: the files and lines that each finding is about, as the user would write their paths.

A fault of a contract field stands in the line of the manifest that declares it, where that is a user's file, and in the
line of config.json that it was read from; a fault of tensors in the files that hold them. Only files that the audit has
read anyway are looked at, and only where there is a finding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, cast

from msgspec.structs import replace

from blockaudit import resources
from blockaudit.checkpoint.files import read_capped
from blockaudit.checkpoint.storage import is_remote
from blockaudit.errors import RequestError
from blockaudit.manifest import document
from blockaudit.manifest.document import Where
from blockaudit.manifest.load import LoadedManifest
from blockaudit.pipeline.json_lines import line_of
from blockaudit.pipeline.manifest_places import wheres
from blockaudit.reconcile.audit import Audit
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.report import Finding, Place

_CONFIG = "config.json"
# `config.json: rms_norm_eps`, in a finding's evidence or as its subject.
_KEY = re.compile(r"config\.json: ([^\s;,]+)")
# Places of one finding, and the largest text that is searched for a line.
_MOST = 4
_LARGEST = document.MAX_YAML


def placed(findings: tuple[Finding, ...], audit: Audit, loaded: LoadedManifest | None) -> tuple[Finding, ...]:
    """The findings, each with the places to look at."""
    if not findings:
        return findings
    of = _Places(audit, loaded)
    return tuple(replace(finding, places=of.places(finding)) for finding in findings)


class _Places:
    """The files of one audit, read when the first finding asks for a line of theirs."""

    def __init__(self, audit: Audit, loaded: LoadedManifest | None) -> None:
        self._checkpoint = audit.checkpoint
        self._disagreeing: dict[str, list[str]] = {}
        for row in audit.reconciled.rows if audit.reconciled is not None else ():
            if row.agrees is False:
                self._disagreeing.setdefault(row.field.rpartition(".")[0], []).append(row.field)
        self._files = {f.name for f in audit.checkpoint.files} | {f.file for f in audit.checkpoint.faults}
        # A manifest of the library lies nowhere that a user looks.
        mine = loaded is not None and loaded.id not in resources.manifest_ids()
        self._manifest = (loaded, _File(loaded.id)) if loaded is not None and mine else None
        # A finding names a tensor as the manifest does; a wrapper or a packing stores it under another key.
        self._stored = audit.reconciled.binding.stored if audit.reconciled is not None else str
        self._config = _File(os.path.join(audit.checkpoint.folder, _CONFIG))
        self._candidate = _file_of(audit.conformance.candidate) if audit.conformance is not None else ""

    def places(self, finding: Finding) -> tuple[Place, ...]:
        found = [*self._in_manifest(finding), *self._in_config(finding), *self._in_files(finding)]
        return tuple(dict.fromkeys(found))[:_MOST] or (self._whole(),)

    def _in_manifest(self, finding: Finding) -> Iterator[Place]:
        if self._manifest is None:
            return
        loaded, file = self._manifest
        for field in self._fields(finding)[: _MOST - 1]:
            line = next((found for where in wheres(field, loaded.manifest) if (found := file.line(where))), 0)
            if line:
                yield Place(loaded.id, line)

    def _fields(self, finding: Finding) -> Sequence[str]:
        """Disagreeing fields of the sites that a finding names: those whose names its message begins with, if any."""
        fields = [f for site in (finding.subject, *finding.also) for f in self._disagreeing.get(site, ())]
        named = [f for f in fields if finding.message.startswith(f"{f.rpartition('.')[2]} ")]
        return named or fields or [finding.subject]

    def _in_config(self, finding: Finding) -> Iterator[Place]:
        # The config of a container stands in its metadata: a config.json beside it was not read.
        if self._checkpoint.config is None or self._checkpoint.container is not None:
            return
        keys = _KEY.findall(f"{finding.subject};{finding.evidence}")
        for key in dict.fromkeys(keys):
            if line := self._config.line(tuple(key.split("."))):
                yield Place(beside(self._checkpoint, _CONFIG), line)

    def _in_files(self, finding: Finding) -> Iterator[Place]:
        if finding.subject in self._files:
            yield Place(beside(self._checkpoint, finding.subject))
        if finding.code.startswith("V") and self._candidate:
            yield Place(self._candidate)
        owner, files = self._checkpoint.owner, self._checkpoint.files
        names = dict.fromkeys(owner[key].name for key in map(self._stored, finding.tensors) if key in owner)
        # A tensor that is not there is missing from the one file that there is.
        names = names or dict.fromkeys(f.name for f in files if finding.tensors and len(files) == 1)
        yield from (Place(beside(self._checkpoint, name)) for name in names)

    def _whole(self) -> Place:
        source = self._checkpoint.source
        single = len(self._checkpoint.files) == 1 and self._checkpoint.folder != source and not is_remote(source)
        nowhere = self._checkpoint.config is None or self._checkpoint.container is not None
        return Place(source if single or nowhere else beside(self._checkpoint, _CONFIG))


def beside(checkpoint: Checkpoint, name: str) -> str:
    """The path of a file of a checkpoint, as the user would write it."""
    apart = name in checkpoint.apart
    source = checkpoint.base if checkpoint.base and not apart else checkpoint.source
    folder = checkpoint.apart[name] if apart else checkpoint.folder
    if is_remote(source):
        return f"{source}/{name}"
    if folder == "." and not source.startswith("."):
        return name
    return f"{folder.rstrip('/')}/{name}"


def _file_of(candidate: str) -> str:
    """`FILE.py` of `FILE.py:NAME`."""
    file, _, _ = candidate.partition(".py:")
    return f"{file}.py" if file != candidate else ""


class _File:
    """A JSON or YAML file that the audit has read, read again when the first line of it is asked for."""

    def __init__(self, path: str) -> None:
        self._path = path

    def line(self, where: Where) -> int:
        """The line of what stands at `where`; 0 where nothing does."""
        if self._is_json:
            return line_of(self._text, where)
        tree, lines = self._yaml
        return (lines.of(where) or 0) if _has(tree, where) else 0

    @cached_property
    def _text(self) -> str:
        try:
            return read_capped(self._path, _LARGEST).decode("utf-8-sig", "replace")
        except (OSError, ValueError):  # a line is a service: the finding stands without it
            return ""

    @cached_property
    def _is_json(self) -> bool:
        return not self._path.lower().endswith((".yaml", ".yml")) and self._text.lstrip()[:1] in ("{", "[", "")

    @cached_property
    def _yaml(self) -> tuple[Any, document.Lines]:
        data = self._text.encode()
        try:
            return document.parse(data, self._path), document.Lines(data)
        except RequestError:  # it has changed since the audit read it
            return None, document.Lines(b"")


def _has(tree: Any, where: Where) -> bool:
    for step in where:
        if isinstance(tree, dict) and step in tree:
            tree = cast("dict[str | int, Any]", tree)[step]
        elif isinstance(tree, list) and isinstance(step, int) and step < len(cast("list[Any]", tree)):
            tree = cast("list[Any]", tree)[step]
        else:
            return False
    return True
