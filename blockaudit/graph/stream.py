"""What a residual stream is made of: adds, their branches, and the norms beside them."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from blockaudit.graph.norms import Norm


@dataclass(frozen=True)
class Branch:
    """One branch between two points of the stream.

    `scale` is the factor on its update, None where it is learned or no constant; `memory` is the value outside the
    stream that it reads.
    """

    update: Node
    norm_in: Norm | None
    norm_out: Norm | None
    inner: tuple[Norm, ...]
    scale: float | None
    kind: str
    memory: Node | None
    softcap: float | None
    core: Node  # the update behind its factors
    factor: float | None  # the part of the scale that the sum itself applies
    retracts: bool = False  # what is added is scale * (update - state): an interpolation towards the update
    beside: Node | None = None  # an earlier value that the input norm reads together with the state
    origin: Node | None = None  # the earlier state that is read, where it is not the shortcut
    doubt: str = ""  # why its kind is not told


@dataclass(frozen=True)
class Add:
    """One residual add: one branch, or several in parallel. `norm_post` normalises the sum.

    `used` is the value that is added in the shortcut's place, where the state itself is not.
    """

    total: Node
    shortcut: Node
    shortcut_scale: float | None
    branches: tuple[Branch, ...]
    norm_post: Norm | None
    used: Node | None = None


@dataclass(frozen=True)
class Stream:
    """A whole stack, first add first. `start` is the embedded input, before `embed_norm` where there is one.

    `unread` says what of it fits no reading that replay confirms.
    """

    adds: tuple[Add, ...]
    final_norm: Norm | None
    embed_norm: Norm | None
    start: Node
    embedding_scale: float | None
    normalised_shortcut: bool = False
    unread: tuple[str, ...] = ()
