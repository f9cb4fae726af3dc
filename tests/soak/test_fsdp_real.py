"""A training state that two ranks of FSDP saved: tensors cut into chunks, the model two dictionaries deep."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.audit import inspect

pytestmark = pytest.mark.soak
LLAMA = Path(__file__).parents[2] / "fixtures" / "tiny_llama"
SAVE = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaForCausalLM

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
model = LlamaForCausalLM.from_pretrained(sys.argv[1])
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
optimizer.step()
weights, state = get_state_dict(model, optimizer)
dcp.save({"app": {"model": weights, "optimizer": state}}, checkpoint_id=sys.argv[2])
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.timeout(600)
def test_a_state_of_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (tmp_path / "save.py").write_text(SAVE)
    folder = tmp_path / "ckpt"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*run, str(tmp_path / "save.py"), str(LLAMA), str(folder)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shutil.copy(LLAMA / "config.json", folder)
    outcome = inspect(folder)
    assert (outcome.status, outcome.names) == (0, ["part-not-covered"]), outcome.out
    assert outcome.report is not None
    assert outcome.report["subject"]["files"] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert outcome.report["subject"]["tensors"] == 39
    last = folder / "__1_0.distcp"
    last.write_bytes(last.read_bytes()[:-4000])
    assert inspect(folder).grave == ["truncated-file"]
