"""config.json sets a field of the block contract that the named class does not read.

What it means:
    The field has a contract's name (an epsilon, a multiplier, a norm flag) and the family's class has no such
    field. At the graph level the class itself is watched while it is built and run.

Why it matters:
    Whoever set it believes that it acts; the class keeps its default.

Example:
    layer_norm_eps in a LLaMA config, whose class reads rms_norm_eps; layer_norm_eps = 1e-12 in BioGPT's config,
    whose norms run 1e-5.

What to do:
    Remove the field, or name the one that the class reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from blockaudit.reconcile.audit import Audit
from blockaudit.records.bound import BoundManifest
from blockaudit.records.contract import Executed
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
_ACTIVATIONS = frozenset({"hidden_act", "hidden_activation", "activation_function"})
# Fields of the base class, or of other tools, that say nothing of the block.
_INERT = frozenset({"rope_scaling", "tie_encoder_decoder", "tie_word_embeddings", "norm_topk_prob"})


def check(audit: Audit) -> Iterator[Finding]:
    """Fields that name a part of the contract and that nothing reads."""
    executed = audit.run
    if audit.config is not None and executed is not None and executed.ignored is not None:
        # The class itself was watched while it was built and run: what a manifest says of it is no longer asked.
        yield from _unread(audit.config, executed.ignored, executed)
    elif audit.config is not None and audit.reconciled is not None:
        yield from _undeclared(audit.config, audit.reconciled.declared)


def _undeclared(config: dict[str, Any], bound: BoundManifest) -> Iterator[Finding]:
    """Fields that the manifest, which lists what its class reads, does not name."""
    if not any(stack.branches for stack in bound.manifest.stacks):
        return  # a manifest of keys alone does not list what its class reads
    # A pinned value was read from its key when it was pinned.
    pinned = {key for value in (*bound.fields.values(), *bound.dims.values()) for key in value.keys}
    read = bound.consumed | pinned | set(bound.manifest.config_reads)
    for key, value in _speaking(config, read):
        yield RULE.finding(
            f"config.json: {key}",
            f"{key} = {shown(value)} is set and the class of {bound.manifest.architecture_id} does not read it",
            expected="a field that the class reads",
            observed=value,
            evidence=f"config.json: {key}",
        )


def _unread(config: dict[str, Any], ignored: Collection[str], executed: Executed) -> Iterator[Finding]:
    """Fields that the class did not read; of an epsilon, what its norms run instead."""
    said = executed.testimony.statements
    epsilons = sorted({s.value for f, s in said.items() if f.endswith(".epsilon") and isinstance(s.value, float)})
    for key, value in _speaking(config, config.keys() - ignored, _ACTIVATIONS):
        runs = f": its norms run {' and '.join(shown(e) for e in epsilons)}" if "eps" in key and epsilons else ""
        yield RULE.finding(
            f"config.json: {key}",
            f"{key} = {shown(value)} is set and {executed.class_name} never reads it{runs}",
            expected="a field that the class reads",
            observed=value,
            evidence=f"config.json: {key}; attributes read while {executed.class_name} was built and run",
        )


def _speaking(config: dict[str, Any], read: Collection[str], also: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Fields that speak of the block, change something, and are not read."""
    for key, value in config.items():
        speaks = key in also or (_WORDS.search(key) and key not in _INERT)
        if speaks and key not in read and not _neutral(value):
            yield key, value


def _neutral(value: object) -> bool:
    """Values that change nothing whoever reads them: an absent field, a factor of one, a flag that is off."""
    return value is None or value is False or value in ("", [], {}) or (isinstance(value, int | float) and value == 1)
