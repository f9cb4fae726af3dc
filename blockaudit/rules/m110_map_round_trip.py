"""The source cannot be made again from the target.

What it means:
    An operation has no inverse, its inverse gives other bits, or a target key is claimed by two rules on the way
    back. A fold or a cast that the map declares is a warning.

Why it matters:
    A conversion that loses something cannot be proved by converting back, and cannot be rolled back.

Example:
    1 is added to a gain in bfloat16, which rounds it: cast to float32 first.

What to do:
    Cast to a wider dtype before arithmetic, give slice its why, or take the ambiguous template apart.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M110", "map-round-trip", "use operations that can be undone, or say why nothing reads what is lost")
