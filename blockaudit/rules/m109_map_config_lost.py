"""A config value that the target's function depends on is supplied by nothing.

What it means:
    The source's config has the value under another name, or not at all, so that the target's class would take its
    own default.

Why it matters:
    Epsilon, head counts and multipliers have no tensor: the converted model loads and is another function.

Example:
    norm_eps 1e-5 is not renamed to rms_norm_eps, and the target class takes 1e-6.

What to do:
    Add {"norm_eps": "rms_norm_eps"} to config, or give the value under supply.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M109", "map-config-lost", "rename the key under config, or supply the value", lab=(12,))
