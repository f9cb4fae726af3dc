"""Where rules and fields come from: sections and failures of the specification, and the papers of norms.

The words of `SECTIONS` and `LAB` are those of the specification; docs/specification.md lists them. `PAPERS` are those
that the formulas of `blockaudit.reference.norms` cite.
"""

from __future__ import annotations

SPECIFICATION = "specification: M3.7, Residual Stream, Normalization, and Block Assembly"

SECTIONS = {
    "0x01": "The residual-stream shape contract",
    "0x02": "LayerNorm normalizes channels inside each row",
    "0x03": "RMSNorm keeps rescaling and removes re-centering",
    "0x04": "Post-LN and Pre-LN are different block equations",
    "0x05": "The Harvard SublayerConnection code spine",
    "0x06": "Encoder block assembly",
    "0x07": "Encoder-decoder block assembly",
    "0x08": "Modern decoder-only assembly: LLaMA-style Pre-RMSNorm",
    "0x09": "Why a Pre-LN stack usually has a final norm",
    "0x09A": "Depth scaling and normalization variants",
    "0x0A": "Dropout has multiple owners",
    "0x0AA": "Local state, reduction, and residual-update ledger",
    "0x0C": "Shape ledger",
    "0x0CA": "Evaluation, migration, release, and rollback",
    "0x0D": "Failure lab",
}

# The failure lab (0x0D): the first sentence of each failure.
LAB = {
    1: "Adding an unmerged attention tensor to the residual stream.",
    2: "Adding an MLP intermediate to the residual stream.",
    3: "Concatenating instead of adding.",
    4: "Adding encoder memory directly to decoder state.",
    5: "Treating residual addition as the source of causal leakage.",
    6: "Normalizing over the sequence axis.",
    7: "Normalizing over the batch axis.",
    8: "Treating the full sentence as one LayerNorm sample.",
    9: "Implementing std + eps while claiming exact nn.LayerNorm.",
    10: "Using the wrong variance correction.",
    11: "Computing low-precision variance without the checkpoint implementation's cast.",
    12: "Using a mismatched epsilon.",
    13: "Loading LayerNorm behavior under RMSNorm weights.",
    14: "Adding a bias to a scale-only RMSNorm checkpoint.",
    15: "Moving a Post-LN checkpoint to Pre-LN because the tensor shapes still fit.",
    16: "Reading post_attention_layernorm as Post-LN.",
    17: "Sharing one norm instance across attention and MLP branches unintentionally.",
    18: "Omitting the final norm in a Pre-LN stack.",
    19: "Dropping the identity path.",
    20: "Applying residual-branch dropout after the add.",
    21: "Assuming attention dropout and residual dropout are one setting.",
    22: "Adding Harvard branch dropout to a checkpoint whose block omits it.",
    23: "Leaving dropout active during evaluation.",
    24: "Changing decoder branch order.",
    25: "Adding cross-attention to a decoder-only checkpoint.",
    26: "Using different normalized inputs for Q, K, and V in self-attention.",
    27: "Assuming Pre-LN guarantees better final quality.",
    28: "Claiming the residual path leaves the gradient unchanged.",
    29: "Turning a local Jacobian identity into a universal Pre-LN quality claim.",
    30: "Treating a conceptual read/write ledger as an exact kernel trace.",
    31: "Calling training degradation a synonym for vanishing gradients.",
    32: "Scaling or dropping the shortcut while still calling it an identity path.",
    33: "Using the decoder-only DeepNorm constants for an encoder-decoder.",
    34: "Replacing LayerNorm with RMSNorm or DyT after training.",
    35: "Treating RealFormer's score residual as the hidden-state residual.",
    36: "Normalizing a feature-sharded tensor locally when the contract requires global d_model statistics.",
    37: "Confusing a fused kernel's normalized output with its residual output.",
    38: "Letting padded rows enter a batch-coupled normalization estimate without an explicit policy.",
    39: "Assuming epsilon matters only for zero-variance rows.",
    40: "Verifying only final block output.",
    41: "Copying one depth exponent and calling it Fixup or T-Fixup.",
    42: "Using Admin without the profile-and-reinitialize pass.",
    43: "Applying one DeepNorm constant to every architecture.",
    44: "Implementing NormFormer with one post-attention norm.",
    45: "Deleting RMSNorm from a trained checkpoint and calling the result nGPT.",
    46: "Sharing one RealFormer score route across attention families.",
    47: "Persisting RealFormer score state as a second generation-history cache.",
    48: "Using DyT's generic alpha initialization for every LLM site.",
    49: "Calling aggregate LayerNorm S-curves an elementwise identity.",
    50: "Folding PRepBN before the transition or without refreshed statistics.",
    51: "Accepting a fused kernel because final output matches once.",
    52: "Adding the residual independently on every tensor-parallel rank.",
    53: "Loading weights but not aliases, mutable buffers, or schedule counters.",
    54: "Canarying a conversion without the previous complete artifact.",
    55: "Treating source-reported benchmark gains as release thresholds.",
}

# Norm family: who described it, as the docstring of its formula says.
PAPERS = {
    "layernorm": "Ba, Kiros and Hinton 2016",
    "layernorm_std_eps": "The Annotated Transformer (Rush 2018)",
    "rmsnorm": "Zhang and Sennrich 2019",
    "prmsnorm": "Zhang and Sennrich 2019 (pRMSNorm)",
    "scalenorm": "Nguyen and Salazar 2019",
    "qknorm": "Henry et al. 2020",
    "groupnorm": "Wu and He 2018",
    "instancenorm": "Ulyanov, Vedaldi and Lempitsky 2016",
    "batchnorm": "Ioffe and Szegedy 2015",
    "powernorm": "Shen et al. 2020",
    "dyt": "Zhu et al. 2025 (Dynamic Tanh)",
}


def lab(number: int) -> str:
    """One failure of the lab, with its place."""
    return f"specification 0x0D, failure {number}: {LAB[number]}"


def section(code: str) -> str:
    """One section, with its title."""
    return f"specification {code}: {SECTIONS[code]}"
