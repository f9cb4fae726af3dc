"""Several processes of one run (`torchrun -m blockaudit conform ...`): layers are shared out, one report comes out.

Every rank runs the candidate and the reference freely, which no rank can do without the layers before; what is
independent by layer (local comparison, layers on the reference's state, probes, identification, diagnosis) is done by
the rank that the layer belongs to. What was found travels through torchrun's own store, in which a rank that is gone
leaves a gap that can be seen, where a collective would wait for ever.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

# How often the store is looked at, in seconds.
_EVERY = 0.05


class RankLostError(Exception):
    """Another rank is gone; the message says which, and what of its work is missing."""


@dataclass
class Share:
    """This process among `world`. `patience`: how long another rank may take longer than this one, in seconds."""

    rank: int = 0
    world: int = 1
    store: Any = None
    patience: float = 3600.0
    stopped: bool = False
    _rounds: int = field(default=0, init=False)

    def owns(self, layer: int | None) -> bool:
        """Whether a layer is this rank's; what lies between layers is the first rank's."""
        return self.rank == (0 if layer is None else layer % self.world)

    def layers(self, rank: int, count: int) -> list[int]:
        """The layers of a rank."""
        return list(range(rank, count, self.world))

    def check(self) -> None:
        """Raises RankLostError where the launcher has told this process to stop, as it does when another one dies."""
        if self.stopped:
            raise RankLostError("the launcher stopped the run: another rank is gone")

    def exchange(self, found: Any) -> list[Any]:
        """What every rank found, by rank. Raises RankLostError for one that never comes."""
        if self.world == 1:
            return [found]
        self._rounds += 1
        self.store.set(f"blockaudit/{self._rounds}/{self.rank}", pickle.dumps(found))
        names = [f"blockaudit/{self._rounds}/{r}" for r in range(self.world)]
        return [pickle.loads(self._get(name, r)) for r, name in enumerate(names)]

    def _get(self, name: str, rank: int) -> bytes:
        begun = time.monotonic()
        while not self.store.check([name]):
            if self.stopped or time.monotonic() - begun > self.patience:
                raise RankLostError(f"rank {rank} of {self.world} is gone: what it compared is missing")
            time.sleep(_EVERY)
        return self.store.get(name)


@contextmanager
def shared() -> Generator[Share]:
    """This process's share: all of it, unless torchrun started several."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2 or "RANK" not in os.environ:
        yield Share()
        return
    store, rank, world = next(iter(torch.distributed.rendezvous("env://", timeout=timedelta(minutes=5))))
    share = Share(int(rank), int(world), store)

    def stop(_number: int, _frame: Any) -> None:
        share.stopped = True

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield share
    finally:
        signal.signal(signal.SIGTERM, before)


def rank() -> int:
    """The rank of this process, 0 where there is one alone."""
    return int(os.environ.get("RANK", "0")) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0
