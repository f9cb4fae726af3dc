"""A tensor is consumed twice or fed twice.

What it means:
    Two rules take the same key of the source, or make the same key of the target.

Why it matters:
    Whichever rule runs last wins, and a tensor that is used in two places is an alias that the training state will
    pull apart.

Example:
    attention.wv feeds k_proj as well as v_proj.

What to do:
    Take one of the rules out; declare an alias where one storage has two names.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M103", "map-not-injective", "let one rule consume each source key, and one rule feed each target key")
