"""config.json sets a field of the block contract that the named class does not read.

What it means:
    The field has a contract's name (an epsilon, a multiplier, a norm flag) and the family's class has no such
    field.

Why it matters:
    Whoever set it believes that it acts; the class keeps its default.

Example:
    layer_norm_eps in a LLaMA config, whose class reads rms_norm_eps.

What to do:
    Remove the field, or name the one that the class reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, shown

RULE = Rule(
    "C103",
    "config-field-unconsumed",
    "remove the field, or name the one that the class reads",
    severity="warning",
)

_WORDS = re.compile(
    r"(^|_)(eps|epsilon|multiplier|softcap|softcapping|soft_cap|residual|parallel|norm|layernorm|logit_scale|scaling|tie)(_|$)"
)
# Fields of the base class, or of other tools, that say nothing of the block.
_INERT = frozenset({"rope_scaling", "tie_encoder_decoder", "tie_word_embeddings", "norm_topk_prob"})


def check(audit: Audit) -> Iterator[Finding]:
    """Fields that name a part of the contract and that nothing reads."""
    if audit.reconciled is None or audit.config is None:
        return
    bound = audit.reconciled.declared
    # A pinned value was read from its key when it was pinned.
    pinned = {key for value in (*bound.fields.values(), *bound.dims.values()) for key in value.keys}
    read = bound.consumed | pinned | set(bound.manifest.config_reads)
    for key, value in audit.config.items():
        if key in read or key in _INERT or not _WORDS.search(key) or _neutral(value):
            continue
        yield RULE.finding(
            f"config.json: {key}",
            f"{key} = {shown(value)} is set and the class of {bound.manifest.architecture_id} does not read it",
            expected="a field that the class reads",
            observed=value,
            evidence=f"config.json: {key}",
        )


def _neutral(value: object) -> bool:
    """Values that change nothing whoever reads them: an absent field, a factor of one, a flag that is off."""
    return value is None or value is False or value in ("", [], {}) or (isinstance(value, int | float) and value == 1)
