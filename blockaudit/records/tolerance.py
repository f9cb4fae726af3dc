"""The tolerance policy (`schemas/tolerance_policy.schema.json`): how far a site may be off, and why that far."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import field

from blockaudit.records.conformance import Mode
from blockaudit.records.manifest import Struct

FloatDtype = Literal["float64", "float32", "float16", "bfloat16"]
# The distance from 1 to the next number.
EPS: dict[str, float] = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Closeness(Struct, frozen=True):
    """A declared bound: an error may be `atol` + `rtol` x the reference. `source` says where the numbers are from."""

    rtol: float
    atol: float
    source: str


class ModeTolerance(Struct, frozen=True):
    """What one mode allows: `factor` x the noise floor for RMS relative errors, `max_factor` x it for the largest one.

    `max_factor` None: single tokens and elements are not judged. `loosen` multiplies declared bounds.
    """

    factor: float
    reason: str
    max_factor: float | None = None
    loosen: float = 1.0


class BitTolerance(Struct, frozen=True):
    """How many elements of a norm's output may differ in their bits, in `local` mode.

    The fraction may be `factor` x the spread of the correct ways to compute the norm, and is never held to less than
    `units` x eps(float32) / eps(dtype); `elements` more may differ, so that a few rows cannot fail by chance.
    """

    factor: float
    units: float
    elements: int
    reason: str


class SiteTolerance(Struct, frozen=True):
    """An exception: sites that match the glob `site`, in some modes and dtypes (none given: in all).

    With `rtol` or `atol` the site is judged by declared bounds, whatever the policy's kind.
    """

    site: str
    reason: str
    modes: tuple[Mode, ...] = ()
    dtypes: tuple[FloatDtype, ...] = ()
    factor: float | None = None
    max_factor: float | None = None
    rtol: float | None = None
    atol: float | None = None


class TolerancePolicy(Struct, frozen=True):
    """A policy. What a file leaves out of `dtypes` and `modes` is the default's; the last matching site wins.

    `measured`: the noise floor of each site is measured, and held to be `floor_units` x eps(dtype) at least.
    """

    schema: Literal["blockaudit/tolerance-policy/1"]
    name: str
    kind: Literal["measured", "declared"] = "measured"
    floor_units: float = 0.25
    dtypes: dict[FloatDtype, Closeness] = field(default_factory=dict[FloatDtype, Closeness])
    modes: dict[Mode, ModeTolerance] = field(default_factory=dict[Mode, ModeTolerance])
    bits: BitTolerance | None = None
    sites: tuple[SiteTolerance, ...] = ()


class Judgement(NamedTuple):
    """The metric that decides, its value, the bound that it is held to, and whether it keeps it."""

    metric: str
    observed: float
    tolerance: float
    passed: bool
