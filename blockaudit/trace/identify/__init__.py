"""What a candidate's norms, adds and multipliers are, solved from captured numbers; else unknown."""

from blockaudit.trace.identify.choice import fitting_weights, which_matrix, which_weight
from blockaudit.trace.identify.final import identify_final
from blockaudit.trace.identify.norms import identify_norm
from blockaudit.trace.identify.residual import identify_residual
from blockaudit.trace.identify.scale import identify_dropout, identify_scale, identify_softcap
from blockaudit.trace.identify.solved import Solved

__all__ = [
    "Solved",
    "fitting_weights",
    "identify_dropout",
    "identify_final",
    "identify_norm",
    "identify_residual",
    "identify_scale",
    "identify_softcap",
    "which_matrix",
    "which_weight",
]
