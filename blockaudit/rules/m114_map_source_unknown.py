"""No manifest speaks of the keys that a map takes.

What it means:
    The map names no source manifest, and the source's keys are not those of the family that its config names. The
    target's side is proved; that a source key is the norm or the matrix that the map takes it for is not.

Why it matters:
    Norms of a model have one shape, and so have gate and up, or k and v: exchanged in the map, nothing of this check
    would show it.

Example:
    blocks.{l}.norm_a.weight to input_layernorm, blocks.{l}.norm_b.weight to post_attention_layernorm: or the other way.

What to do:
    Name a manifest under source: a layout of the library, or the target's manifest with the source's keys in it. Or
    compare numbers: run the source, record a trace, and hold the converted model to it.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule(
    "M114",
    "map-source-unknown",
    "name a manifest of the source under source, or hold the converted model to a trace of the source",
    severity="note",
)
