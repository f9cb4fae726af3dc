"""A migration map that cannot be read as one.

What it means:
    The map's file breaks the schema, a template names an axis that nothing opens or closes, or an operation is
    given something that it cannot act on.

Why it matters:
    A map that is half understood moves half of a model. Nothing of it is carried out.

Example:
    {"from": "layers.{l}.w", "to": "w"}: axis {l} has nowhere to go.

What to do:
    Mend the place that is named. Close an axis with stack, concat or replicated, open one with unstack or split.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M101", "map-invalid", "mend the map at the place named: `blockaudit map show` prints what a map must hold")
