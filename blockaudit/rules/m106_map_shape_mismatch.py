"""A rule gives a tensor of another shape than the target expects, or cannot act on what it is given.

What it means:
    The shape after all operations, worked out from headers alone, is not that of the target's manifest under the
    target's config.

Why it matters:
    A loader would refuse it, or broadcast it.

Example:
    split into equal parts of a fused tensor whose k and v have fewer heads than q.

What to do:
    Compare the two shapes: a missing concat, a wrong dim, a head count, or a config value that was not carried.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule(
    "M106",
    "map-shape-mismatch",
    "mend the operation, its dimension or the config value that the expected shape comes from",
)
