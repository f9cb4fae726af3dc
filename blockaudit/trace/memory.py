"""Memory that has run out, by whatever name the allocators call it."""

from __future__ import annotations

import torch

from blockaudit.errors import told

# torch 2.13, c10/core/impl/alloc_cpu.cpp and CPython, Modules/_threadmodule.c (a thread's stack has no room either):
# both raise a RuntimeError that has no type of its own.
_TELLTALES = ("can't allocate memory", "not enough memory", "can't start new thread")


def ran_out(error: BaseException) -> str | None:
    """What to tell a user of an error that is a lack of memory; None of any other."""
    lacking = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(t in str(error) for t in _TELLTALES)
    )
    if not lacking:
        return None
    return f"memory ran out ({told(error)}): fewer tokens (--batch, --seq-len) or one mode (--mode layer) need less"
