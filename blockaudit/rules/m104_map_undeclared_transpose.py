"""A matrix whose axes change places without the map saying so, or the other way round.

What it means:
    One side stores a linear map as [out, in] and the other as [in, out] (GPT-2's Conv1D), and the rule declares no
    transpose; or it declares one where both store alike; or the shape is square and nothing decides it.

Why it matters:
    A square matrix loads either way. The model runs, and computes with the transposed matrix.

Example:
    attn.c_proj.weight [768, 768] of GPT-2 carried as it is into an nn.Linear.

What to do:
    Declare {"op": "transpose"}, or "keeps": ["axes"] where a square matrix is laid out alike on both sides.
"""

from __future__ import annotations

from blockaudit.rules.base import Rule

RULE = Rule("M104", "map-undeclared-transpose", 'declare {"op": "transpose"} on the rule, or take it out')
