"""What a trace file says about itself: keys of the metadata, names of the token tensors, the state of one site."""

from __future__ import annotations

import msgspec

from blockaudit.records.conformance import SiteResult

FORMAT, VERSION = "blockaudit.trace", "1"
# The tensors of a trace file that are no sites: int64, [B, S].
TOKENS = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")


class TraceMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of a trace file, each field as `blockaudit.NAME`; empty: the writer did not say.

    `manifest_sha256` is the hash that `manifest show` prints, `dtype_policy` what the trace was computed in
    (`bfloat16`), `tokens_sha256` the hash of the token tensors (`trace.tokens.digest`), `mode` how it was run (none
    said: end-to-end), `depth` is `full` or `wrapper` where it is a reference's.
    """

    manifest_sha256: str = ""
    dtype_policy: str = ""
    tokens_sha256: str = ""
    mode: str = ""
    depth: str = ""

    def encoded(self) -> dict[str, str]:
        """As a safetensors header holds it."""
        said = {f"blockaudit.{f.name}": getattr(self, f.name) for f in msgspec.structs.fields(self)}
        return {FORMAT: VERSION, **{name: value for name, value in said.items() if value}}

    @classmethod
    def decoded(cls, metadata: dict[str, str]) -> TraceMetadata:
        """Of a header's metadata; what others wrote there is left out."""
        return cls(**{f.name: metadata.get(f"blockaudit.{f.name}", "") for f in msgspec.structs.fields(cls)})


class SiteNumbers(msgspec.Struct, frozen=True):
    """One site of a file, summed up: RMS over the finite elements, and how many others there are."""

    site: str
    shape: tuple[int, ...]
    dtype: str
    rms: float
    non_finite: int


class TraceComparison(msgspec.Struct, frozen=True):
    """Two trace files held against each other, site by site in the order in which they are executed.

    `first` is the first divergence; `only_candidate` and `only_reference` the sites that one of them lacks, which are
    not judged; `remarks` what a reader should know before believing it.
    """

    candidate: str
    reference: str
    sites: tuple[SiteResult, ...]
    first: SiteResult | None
    only_candidate: tuple[str, ...]
    only_reference: tuple[str, ...]
    policy: dict[str, str]
    remarks: tuple[str, ...] = ()
