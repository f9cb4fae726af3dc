"""Norms of every family of the manifest: the formula, and the formula as low-precision numerics run it."""

from blockaudit.reference.norms.formulas import NormError, apply, normalised
from blockaudit.reference.norms.rounding import released, variants

__all__ = ["NormError", "apply", "normalised", "released", "variants"]
