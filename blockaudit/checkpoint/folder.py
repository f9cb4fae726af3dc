"""Which files of a folder are the checkpoint: the Hugging Face layout, and the few ways to depart from it."""

from __future__ import annotations

import os
import re

import msgspec

from blockaudit.checkpoint import containers, foreign, storage
from blockaudit.checkpoint.index import INDEX_SUFFIX
from blockaudit.checkpoint.weights import PICKLE_SUFFIXES
from blockaudit.errors import RequestError

# Training state that lies beside weights. It is no weight file, and unpickling it would run code.
_SIDECAR = re.compile(
    r"training_args\.bin|(?:scheduler|optimizer|scaler|sampler|random_states)[\w.-]*\.(?:pt|pth|bin|pkl|safetensors)"
    r"|rng_state[\w.-]*\.pth|trainer_state\.json",
    re.ASCII,
)
# What DeepSpeed and torch.distributed write: parts of a training state that a loader cannot use as they are.
_SHARDED = re.compile(r".*\.distcp|.*_(?:model|optim)_states\.pt", re.ASCII | re.DOTALL)
_PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
# Folders of a folder without weights that are searched for a hint.
_LOOKED_INTO = 256


class Choice(msgspec.Struct, frozen=True):
    """The file of a folder to start from, by name; without one, `sharded` are the parts of a training state.

    `backend` is torch_dist for a folder that Megatron-core wrote, torch for another distributed checkpoint.
    """

    name: str
    sidecars: tuple[str, ...]
    sharded: tuple[str, ...] = ()
    backend: str = ""


def is_sidecar(name: str) -> bool:
    """Whether a name is that of training state beside the weights."""
    return _SIDECAR.fullmatch(name) is not None


def is_sharded_state(name: str) -> bool:
    """Whether a name is that of one part of a distributed training state."""
    return _SHARDED.fullmatch(name) is not None


def names_in(folder: str, source: str) -> list[str]:
    """Names in a folder, sorted. Raises RequestError where it cannot be listed."""
    try:
        return storage.names_in(folder)
    except OSError as error:
        raise RequestError(f"{source}: the folder cannot be listed: {(error.strerror or 'error').lower()}") from error


def _stems(names: list[str]) -> set[str]:
    """The checkpoints that shards of names such as model-00001-of-00002.safetensors belong to."""
    matches = (re.fullmatch(r"(.*?)[-_.]\d+-of-\d+(\.\w+)", name, re.DOTALL) for name in names)
    return {m[1] + m[2] for m in matches if m}


def _several(source: str, names: list[str]) -> RequestError:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    if len(_stems(names)) == 1:
        (stem,) = _stems(names)
        return RequestError(
            f"{source}: {len(names)} shards ({shown}) and no index: expected {stem}{INDEX_SUFFIX} beside them"
        )
    return RequestError(f"{source}: several weight files ({shown}): name the one to audit")


def _nothing(folder: str, source: str, names: list[str]) -> RequestError:
    if not names:
        return RequestError(f"{source}: the folder is empty: expected model.safetensors or a shard index")
    known = foreign.in_folder(folder, names)
    if known is not None:
        name, (what, remedy) = known
        return RequestError(f"{source}: no weights in a format that is read: {name} is {what}: {remedy}")
    below = _checkpoints_below(folder)
    if below:
        shown = ", ".join(below[:4]) + (f" and {len(below) - 4} more" if len(below) > 4 else "")
        held = f"{len(below)} of its folders hold" if len(below) > 1 else "one of its folders holds"
        first = os.path.join(source, below[0])
        return RequestError(
            f"{source}: no weights in this folder, and {held} a checkpoint ({shown}): name what to audit, as {first}"
        )
    return RequestError(
        f"{source}: no weights in this folder: expected model.safetensors, a shard index or pytorch_model.bin"
    )


def _checkpoints_below(folder: str) -> list[str]:
    """Folders of this folder that weights lie in, by name, of a folder of this machine; links are not followed."""
    if storage.is_remote(folder):
        return []
    with os.scandir(folder) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))[:_LOOKED_INTO]
    return [name for name in folders if _holds_weights(os.path.join(folder, name))]


def _holds_weights(folder: str) -> bool:
    try:
        names = storage.names_in(folder)
    except OSError:
        return False  # a hint is sought: what may not be listed is none
    return any(map(is_sharded_state, names)) or any(_other_weights(names))


def _other_weights(names: list[str]) -> list[list[str]]:
    """Candidates by preference: safetensors, index files of other stems, pickles, GGUF (a split file once)."""
    weights = [name for name in names if not is_sidecar(name) and not is_sharded_state(name)]
    indexes = [name for name in weights if name.endswith((f".safetensors{INDEX_SUFFIX}", f".bin{INDEX_SUFFIX}"))]
    tensors = [name for name in weights if name.endswith(".safetensors")]
    pickles = [n for n in weights if n.endswith(PICKLE_SUFFIXES) and foreign.by_name(n) is None]
    return [indexes, tensors, pickles, containers.gguf_files(weights)]


def _pick(source: str, names: list[str]) -> str:
    for candidates in _other_weights(names):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise _several(source, candidates)
    return ""


def choose(folder: str, source: str) -> Choice:
    """Choose the weights of a folder. Raises RequestError where there are none, or no way to choose between several."""
    names = names_in(folder, source)
    preferred = next((name for name in _PREFERRED if name in names), "")
    backend = "" if preferred else containers.distributed_backend(folder, source, names)
    if backend:
        return Choice("", tuple(name for name in names if is_sidecar(name)), (), backend)
    picked = preferred or _pick(source, names)
    sidecars = tuple(name for name in names if is_sidecar(name) and name != picked)
    if picked:
        return Choice(picked, sidecars)
    sharded = tuple(name for name in names if is_sharded_state(name))
    if not sharded:
        raise _nothing(folder, source, names)
    return Choice("", sidecars, sharded)
