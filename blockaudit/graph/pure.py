"""Operators that write in place, made values of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx


def without_writes(traced: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """The same graph where every in-place write is a new value, whichever view it was written through.

    The recorded operators are recorded again, not the code that made them: that may look at values, which the wrapped
    tensors of `functionalize` do not show. A graph that cannot be run again so stays as it is.
    """
    if not any(writes(n) for n in traced.graph.nodes):
        return traced
    run: Any = torch.func.functionalize(traced)
    try:
        # What the code looked at is in the graph already: looking again is no reason to stop.
        again = make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True, _error_on_data_dependent_ops=False)
        return again(*inputs)
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
        return traced


def writes(node: Node) -> bool:
    """Whether an operator writes into one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)
