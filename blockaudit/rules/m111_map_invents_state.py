"""State is made up that no source of this function would lack.

What it means:
    The map initialises a bias, or a weight that is not new state under a declared recipe.

Why it matters:
    Absence of a norm bias is a fact about the norm's family (RMSNorm), not permission to make up zeros and change
    the family.

Example:
    init: {"key": "model.layers.{l}.input_layernorm.bias", "value": "zeros"}.

What to do:
    Choose a target without that state, or feed it from the source.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule(
    "M111",
    "map-invents-state",
    "take the initialisation out: a bias or weight that the source lacks makes another function",
    lab=(14,),
)
