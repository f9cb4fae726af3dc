"""The two architectures compute different functions, and nothing in the map compensates it exactly.

What it means:
    A field of the contract (norm family, placement, epsilon, residual scale, a bias, an activation) differs between
    the manifests, each bound to its own config.

Why it matters:
    Pre-LN to Post-LN, RMSNorm to DyT, GPT to nGPT: weights of one are no weights of the other. The release contract
    is then retraining evidence, not a conversion with zero error.

Example:
    source layernorm, target rmsnorm: the mean is no longer taken out.

What to do:
    Take a target manifest of the same function, or train on and release that.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule(
    "M112",
    "topology-change-needs-retraining",
    "choose a target of the same function, or retrain and release on that evidence",
    lab=(15, 34, 45),
)
