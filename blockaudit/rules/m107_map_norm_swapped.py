"""A norm's weight lands in a slot that reads another state.

What it means:
    By the two manifests' block equations the source norm and the target norm do not stand at the same place of the
    same branch in the same layer. Names are not looked at.

Why it matters:
    All norms of a model have one shape. Swapped gains load without a word and scale the wrong branch.

Example:
    ffn_norm feeding input_layernorm, because post_attention_layernorm sounded like something else.

What to do:
    Follow the equations (`blockaudit manifest show`), not the names, and exchange the targets.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M107", "map-norm-swapped", "feed each norm from the norm that reads the same state")
