"""A folder that Megatron-core itself saved: its layout and metadata are read, and a lost file is named.

Its writer asks for a GPU only to wait for it: the script answers for one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.audit import inspect
from tests.support.packages import package

pytestmark = [pytest.mark.soak, pytest.mark.network]
SAVE = """
import sys
import torch
import torch.distributed as dist

torch.cuda.synchronize = lambda *a, **k: None
torch.cuda.current_device = lambda: "cpu"
if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    of, state = ShardedTensor.from_rank_offsets, {"args": {"a": 1}}
    for key, shape in {
        "self_attention.linear_qkv.weight": (16, 8), "self_attention.linear_qkv.layer_norm_weight": (8,),
        "mlp.linear_fc1.weight": (24, 8), "mlp.linear_fc2.weight": (8, 12),
    }.items():
        for layer in range(2):
            name = f"decoder.layers.{key}"
            state[f"{name}.{layer}"] = of(name, torch.randn(shape), (0, layer, 2), prepend_axis_num=1)
    for name in ("decoder.final_layernorm.weight", "optimizer.state.exp_avg.decoder.final_layernorm.weight"):
        state[name] = of(name, torch.ones(8))
    dist_checkpointing.save(state, sys.argv[1])
"""


@pytest.mark.timeout(600)
def test_a_folder_of_megatron_core(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    home = package(tmp_path, "megatron-core==0.16.1")
    (tmp_path / "save.py").write_text(SAVE)
    folder = tmp_path / "ckpt"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "save.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(home)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"megatron-core wants more than torch here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "metadata.json").read_text())["sharded_backend"] == "torch_dist"
    outcome = inspect(folder)
    assert outcome.status == 3, outcome.out
    assert outcome.names == ["config-missing", "unknown-architecture", "part-not-covered"]
    assert outcome.report is not None
    assert (outcome.report["subject"]["format"], outcome.report["subject"]["tensors"]) == ("megatron-core", 9)
    next(folder.glob("*.distcp")).unlink()
    assert "shard-missing" in inspect(folder).grave
