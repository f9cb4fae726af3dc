"""`inspect --base`: an adapter read together with the model that it is added to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from blockaudit.checkpoint.adapter.read import read_adapter, unread
from blockaudit.errors import RequestError
from blockaudit.reconcile import adapted
from blockaudit.reconcile.audit import Audit
from blockaudit.records.adapter import Adapter
from blockaudit.records.checkpoint import Checkpoint


class OnBase(msgspec.Struct, frozen=True):
    """An adapter as it is stored, and what it says of itself."""

    stored: Checkpoint
    adapter: Adapter

    def held(self, audit: Audit) -> Audit:
        """The audit of the merged key set, with what of the adapter does not fit the base among its faults."""
        of = self.stored.files[0].name
        if not self.adapter.read:
            faults = [unread(self.adapter, of)]
        else:
            faults = adapted.misfits(self.adapter, self.stored, audit.checkpoint.tensors, audit.reconciled)
            faults += self.adapter.unsaid
        return replace(audit, checkpoint=replace(audit.checkpoint, faults=(*audit.checkpoint.faults, *faults)))

    def low_rank(self) -> Checkpoint:
        """The adapter with those tensors alone that stand in no key of the merged function."""
        whole = {*self.adapter.whole.values()}
        return replace(self.stored, tensors={k: t for k, t in self.stored.tensors.items() if k not in whole})


def on_base(stored: Checkpoint, base: str, open_base: Callable[[str], Checkpoint]) -> tuple[Checkpoint, OnBase]:
    """The key set of the merged function, and the adapter that is to be held to it. Raises RequestError."""
    if not is_adapter(stored):
        raise RequestError(f"{stored.source}: not a PEFT adapter: --base is the model that an adapter is added to")
    below = open_base(base)
    if is_adapter(below):
        raise RequestError(f"{base}: --base is an adapter itself: name the model that both are added to")
    if below.container is not None or below.format in ("torch-distributed", "megatron-core"):
        raise RequestError(
            f"{base}: an adapter names modules of a Hugging Face checkpoint, and this is {below.format}: "
            "name the checkpoint that it was converted from as --base"
        )
    adapter, _ = read_adapter(stored.tensors, stored.adapter, stored.files[0].name)
    return adapted.merged(below, adapter, stored), OnBase(stored, adapter)


def is_adapter(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is an adapter, were its file unreadable."""
    first = checkpoint.files[0].name if checkpoint.files else ""
    named = checkpoint.adapter is not None and first.startswith("adapter_model")
    return named or any(f.rule == "adapter-only" for f in checkpoint.faults)
