"""Run as two processes: a state dict in a safetensors file, saved by torch.distributed.checkpoint from two ranks.

`python two_ranks.py WEIGHTS FOLDER STORE RANK`. Tensors are cut as fully sharded data parallelism and as tensor
parallelism cut them: by rows where the name says nothing, by columns for `o_proj` and `down_proj`, norms on every rank.
"""

from __future__ import annotations

import sys
import warnings

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def placement(key: str) -> Replicate | Shard:
    if "norm" in key:
        return Replicate()
    return Shard(1) if "o_proj" in key or "down_proj" in key else Shard(0)


def main(weights: str, folder: str, store: str, rank: int) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {key: distribute_tensor(t, mesh, [placement(key)]) for key, t in load_file(weights).items()}
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
