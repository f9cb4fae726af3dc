"""Two recorded traces held against each other: one runtime's numbers against another's, with nothing to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from blockaudit.errors import RequestError
from blockaudit.records.conformance import Mode, SiteResult
from blockaudit.records.tolerance import EPS, TolerancePolicy
from blockaudit.records.trace_file import TOKENS, TraceComparison
from blockaudit.trace.compare import difference
from blockaudit.trace.files.read import TraceFile
from blockaudit.trace.tokens import digest
from blockaudit.trace.tolerance import described, judge


def compare(candidate: str, reference: str, policy: TolerancePolicy) -> TraceComparison:
    """Compare every site that both files hold, one at a time.

    No noise can be measured without something to run, so that the policy's declared bounds judge, those of the coarsest
    dtype that either trace was computed or stored in. Raises RequestError where there is nothing to compare.
    """
    with TraceFile.open(candidate) as ours, TraceFile.open(reference) as theirs:
        remarks = tuple(_checked(ours, theirs))
        shared = [site for site in ours.sites if site in theirs]
        if not shared:
            raise RequestError(f"{candidate} and {reference} have no site in common")
        mode = cast("Mode", ours.metadata.mode or "end-to-end")  # an open trace has no other word there
        results = tuple(_result(ours, theirs, site, mode, policy) for site in shared)
        return TraceComparison(
            candidate=candidate,
            reference=reference,
            sites=results,
            first=next((r for r in results if not r.passed), None),
            only_candidate=tuple(site for site in ours.sites if site not in theirs),
            only_reference=tuple(site for site in theirs.sites if site not in ours),
            policy=described(policy),
            remarks=remarks,
        )


def _result(ours: TraceFile, theirs: TraceFile, site: str, mode: Mode, policy: TolerancePolicy) -> SiteResult:
    if ours.shape(site) != theirs.shape(site):
        shapes = f"{list(ours.shape(site))} in {ours.path} and {list(theirs.shape(site))} in {theirs.path}"
        raise RequestError(f"{site} has shape {shapes}")
    dtype = _judged(ours, theirs, site)
    valid = ours.valid(site)
    found = difference(
        ours.tensor(site),
        theirs.tensor(site),
        dtype=getattr(torch, dtype),
        valid=theirs.valid(site) if valid is None else valid,
    ).settle()
    held = judge(site, mode, dtype, found, None, policy, is_norm=False)
    return SiteResult(site, mode, dtype, found, held.metric, held.observed, held.tolerance, None, held.passed)


def _judged(ours: TraceFile, theirs: TraceFile, site: str) -> str:
    """The coarsest dtype in play: a bfloat16 run that is stored as float32 is no better for it."""
    named = (ours.dtype(site), theirs.dtype(site), ours.metadata.dtype_policy, theirs.metadata.dtype_policy)
    return max((name for name in named if name in EPS), key=lambda name: EPS[name])


def _checked(ours: TraceFile, theirs: TraceFile) -> Iterator[str]:
    """What a reader should know. Raises RequestError where the two are traces of different tokens."""
    for file in (ours, theirs):
        held, said = file.tokens(), file.metadata.tokens_sha256
        if held and said and digest(held) != said:
            raise RequestError(f"{file.path}: its tokens are not those whose hash its metadata gives")
    yield from _same_tokens(ours, theirs)
    one, other = ours.metadata, theirs.metadata
    if one.manifest_sha256 and other.manifest_sha256 and one.manifest_sha256 != other.manifest_sha256:
        yield "the traces were recorded for two different manifests"
    if one.mode and other.mode and one.mode != other.mode:
        yield f"{ours.path} was recorded in mode {one.mode}, {theirs.path} in mode {other.mode}"


def _same_tokens(ours: TraceFile, theirs: TraceFile) -> Iterator[str]:
    both = [name for name in TOKENS if name in ours and name in theirs]
    for name in both:
        if not torch.equal(ours.tensor(name), theirs.tensor(name)):
            raise RequestError(f"{ours.path} and {theirs.path} are traces of different tokens: {name} differs")
    said = ours.metadata.tokens_sha256, theirs.metadata.tokens_sha256
    if "input_ids" in both or (all(said) and said[0] == said[1]):
        return
    if all(said):
        raise RequestError(f"{ours.path} and {theirs.path} are traces of different tokens: their hashes differ")
    yield "whether the traces are of the same tokens cannot be told: one of them does not say"
