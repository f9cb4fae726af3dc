"""A tensor lands in another role, branch or layer than the one it has.

What it means:
    By the two manifests the source tensor and the target tensor are not the same projection of the same branch in
    the same layer.

Why it matters:
    gate and up, or k and v, have one shape: swapped they load without a word.

Example:
    feed_forward.w3 feeding gate_proj, and w1 feeding up_proj.

What to do:
    Exchange the targets; shift the layer numbers.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M113", "map-role-swapped", "feed each tensor from the one of the same role")
