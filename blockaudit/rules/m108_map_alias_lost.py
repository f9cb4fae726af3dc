"""One storage under two names would become two, or none.

What it means:
    The target's manifest ties a key to another under the target's config and the map declares no alias; or an alias
    is declared that the target does not have.

Why it matters:
    An output head that was tied is left at its initial value, or drifts from the embedding as soon as it is
    trained.

Example:
    tie_word_embeddings is true and lm_head.weight is nowhere in the map.

What to do:
    Add ["lm_head.weight", "model.embed_tokens.weight"] to alias.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M108", "map-alias-lost", "declare the alias, or feed the key", lab=(53,))
