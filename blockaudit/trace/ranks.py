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
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import torch

from blockaudit.errors import told

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

    def device(self, asked: torch.device) -> torch.device:
        """Of several GPUs each rank takes its own."""
        if self.world == 1 or asked.type != "cuda":
            return asked
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)) % torch.cuda.device_count())

    def check(self) -> None:
        """Raises RankLostError where the launcher has told this process to stop, as it does when another one dies."""
        if self.stopped:
            raise RankLostError("the launcher stopped the run: another rank is gone")

    def leave(self, reason: str) -> None:
        """Tell the others that this rank compares no more."""
        if self.world > 1:
            self.store.set(f"blockaudit/gone/{self.rank}", reason)

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
        gone = f"blockaudit/gone/{rank}"
        while not self.store.check([name]):
            if self.store.check([gone]):
                raise RankLostError(f"rank {rank} of {self.world}: {self.store.get(gone).decode()}")
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
    store, rank, world = _rendezvous()
    share = Share(int(rank), int(world), store)

    def stop(_number: int, _frame: Any) -> None:
        share.stopped = True

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield share
    except BaseException as error:
        share.leave(told(error))
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _rendezvous() -> tuple[Any, int, int]:
    """Torchrun's store, the rank of this process and how many there are."""
    from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType] - untyped upstream

    call = cast("Callable[..., Iterator[tuple[Any, int, int]]]", rendezvous)
    return next(call("env://", timeout=timedelta(minutes=5)))
