"""Build a module without the memory of its weights: large tensors that have no value of their own are fake.

What code leaves uninitialised, or draws at random, says nothing of the contract; what it computes (masks, tables,
constants) does, and stays real.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

# Elements from which a weight is left out (a megabyte in bfloat16).
LARGE = 2**19
_aten: Any = torch.ops.aten
_SIZED = {_aten.empty.memory_format, _aten.rand.default, _aten.randn.default}
_LIKE = {_aten.empty_like.default, _aten.rand_like.default, _aten.randn_like.default}


class Weightless(TorchDispatchMode):
    """While it is active, large tensors without a value are made fake."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - untyped upstream
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        large = func in _SIZED and prod(args[0]) >= LARGE
        if large or (func in _LIKE and args[0].numel() >= LARGE):
            with self.fake:
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def mode_of(module: torch.nn.Module) -> FakeTensorMode | None:
    """The mode that the fake weights of a module belong to; None where all of them are real."""
    weights = (p.data if isinstance(p, torch.nn.Parameter) else p for p in (*module.parameters(), *module.buffers()))
    return next((w.fake_mode for w in weights if isinstance(w, FakeTensor)), None)
