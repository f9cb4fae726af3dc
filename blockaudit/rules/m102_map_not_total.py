"""A key of the source or of the target is not in the map's account.

What it means:
    Every key of the source is consumed once, dropped with a reason, or an alias; every key of the target is fed
    once, an alias, or initialised with a reason. This one is none of these, or is one that the manifest does not
    have.

Why it matters:
    A loader with strict=False leaves such a tensor at its random initial value, and nothing says so.

Example:
    layers.{n}.ffn_norm.weight has no rule: 32 norms of the target would keep ones.

What to do:
    Add a rule for the key, or list it under drop with the reason.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule(
    "M102",
    "map-not-total",
    "consume, drop with a reason or alias every source key; feed, alias or initialise every target key",
)
