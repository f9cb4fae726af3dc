"""Rows of q, k or v that would land in another place, which no shape shows.

What it means:
    q, k and v lie in one tensor in an order that is not declared or not the manifest's; or the two sides pair
    rotary coordinates differently (half-split against interleaved) and nothing permutes the rows, or permutes them
    with another head count.

Why it matters:
    Every shape fits. Attention scores are of other coordinates, and quality falls without an error.

Example:
    Meta's interleaved wq renamed to q_proj, which transformers turns half-split.

What to do:
    Add the word that the finding names: a layout with heads and kv_heads, permute_rope with heads, or "keeps":
    ["rope"].
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule(
    "M105",
    "map-undeclared-layout",
    "declare the layout of q, k and v (qkv, per_head, per_group) or permute_rope with this projection's heads",
)
