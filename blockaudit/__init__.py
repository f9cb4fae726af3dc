"""Audit a Transformer checkpoint against the block contract it is supposed to keep."""

__version__ = "0.1.0"
