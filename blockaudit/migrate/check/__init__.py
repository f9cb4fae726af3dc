"""What is proved of a map on headers alone: one module for each thing, every flaw under the name of its rule."""

from __future__ import annotations

from blockaudit.migrate.check.account import account
from blockaudit.migrate.check.axes import axes
from blockaudit.migrate.check.configs import configs
from blockaudit.migrate.check.described import described
from blockaudit.migrate.check.factors import factors
from blockaudit.migrate.check.heads import heads
from blockaudit.migrate.check.norms import norms
from blockaudit.migrate.check.packed import packed
from blockaudit.migrate.check.rope import rope
from blockaudit.migrate.check.round_trip import round_trip
from blockaudit.migrate.check.shapes import shapes
from blockaudit.migrate.check.state import state
from blockaudit.migrate.check.ties import ties
from blockaudit.migrate.check.topology import topology
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault

CHECKS = (
    described,
    account,
    packed,
    state,
    shapes,
    axes,
    rope,
    heads,
    norms,
    ties,
    configs,
    factors,
    topology,
    round_trip,
)


def check(work: Work) -> tuple[Fault, ...]:
    """Everything that speaks against the map on this source; of one that cannot be read as a map, that alone."""
    invalid = tuple(flaw for flaw in work.flaws if flaw.rule == "map-invalid")
    if invalid:
        return invalid
    return (*work.flaws, *(flaw for one in CHECKS for flaw in one(work)))
