"""Audit a Transformer checkpoint against the block contract it is supposed to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockaudit.pipeline import inspect as inspect
    from blockaudit.records.report import Report as Report

__version__ = "0.1.0"
__all__ = ["Report", "__version__", "inspect"]


def __getattr__(name: str) -> Any:
    """`blockaudit.inspect` and `blockaudit.Report`, imported on use: the command line needs the version alone."""
    if name == "inspect":
        from blockaudit.pipeline import inspect

        return inspect
    if name == "Report":
        from blockaudit.records.report import Report

        return Report
    raise AttributeError(f"module 'blockaudit' has no attribute {name!r}")
