"""A GPTModel of Megatron-core on two ranks of tensor parallelism, saved by its own `dist_checkpointing`, converted.

Its writer asks for a GPU only to wait for it: the script answers for one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import package

pytestmark = [pytest.mark.soak, pytest.mark.network]
pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from tests.migrate.library.proving import Weights, same_bytes, stored, there  # noqa: E402

RANKS, GROUPS, ROWS, WIDTH, FF, VOCAB = 2, 2, 8, 32, 48, 64
CONFIG = {
    "num_layers": 2, "hidden_size": WIDTH, "ffn_hidden_size": FF, "num_attention_heads": 4, "num_query_groups": GROUPS,
    "kv_channels": ROWS, "layernorm_epsilon": 1e-5, "normalization": "RMSNorm", "gated_linear_unit": True,
    "add_bias_linear": False,
}  # fmt: skip
MODEL = {
    "vocab_size": VOCAB, "max_sequence_length": 32, "share_embeddings_and_output_weights": False,
    "position_embedding_type": "rope", "rotary_base": 10000,
}  # fmt: skip
SAVE = f"""
import sys
import torch
import torch.distributed as dist

torch.cuda.synchronize = lambda *a, **k: None
torch.cuda.current_device = lambda: "cpu"
if __name__ == "__main__":
    folder, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", {RANKS}), rank=rank, world_size={RANKS})
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel({RANKS}, 1)
    config = TransformerConfig(
        **{CONFIG!r}, tensor_model_parallel_size={RANKS}, use_cpu_initialization=True,
        activation_func=torch.nn.functional.silu, bias_activation_fusion=False,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), **{MODEL!r})
    held = {{key: value for key, value in model.state_dict().items() if torch.is_tensor(value)}}
    torch.save(held, folder + f"/rank{{rank}}.pt")
    dist_checkpointing.save(model.sharded_state_dict(), folder + "/ckpt")
    dist.barrier()
"""


def saved(folder: Path) -> Path:
    home = package(folder, "megatron-core==0.16.1")
    (folder / "save.py").write_text(SAVE)
    (folder / "ckpt").mkdir()
    env = {**os.environ, "PYTHONPATH": str(home)}
    command = [sys.executable, str(folder / "save.py"), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=env, stderr=subprocess.PIPE, text=True) for rank in range(RANKS)
    ]
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    if any("ModuleNotFoundError" in text for text in said):
        pytest.skip(f"megatron-core wants more than torch here: {said[0].splitlines()[-1]}")
    assert [rank.returncode for rank in ranks] == [0] * RANKS, said
    (folder / "ckpt" / "config.json").write_text(json.dumps(CONFIG | MODEL))
    return folder / "ckpt"


def joined(ranks: list[Weights]) -> Weights:
    """The model in transformers' names, out of what each rank held in memory."""
    found: Weights = {}

    def rows(name: str) -> torch.Tensor:
        return torch.cat([rank[name] for rank in ranks])

    for n in range(CONFIG["num_layers"]):
        at, to = f"decoder.layers.{n}.", f"model.layers.{n}."
        qkv = rows(f"{at}self_attention.linear_qkv.weight").view(GROUPS, -1, WIDTH)
        q, k, v = (part.reshape(-1, WIDTH) for part in qkv.split([qkv.shape[1] - 2 * ROWS, ROWS, ROWS], dim=1))
        gates = [rank[f"{at}mlp.linear_fc1.weight"].chunk(2) for rank in ranks]
        found |= {
            f"{to}self_attn.q_proj.weight": q, f"{to}self_attn.k_proj.weight": k, f"{to}self_attn.v_proj.weight": v,
            f"{to}self_attn.o_proj.weight": torch.cat([r[f"{at}self_attention.linear_proj.weight"] for r in ranks], 1),
            f"{to}mlp.gate_proj.weight": torch.cat([gate for gate, _ in gates]),
            f"{to}mlp.up_proj.weight": torch.cat([up for _, up in gates]),
            f"{to}mlp.down_proj.weight": torch.cat([r[f"{at}mlp.linear_fc2.weight"] for r in ranks], 1),
            f"{to}input_layernorm.weight": ranks[0][f"{at}input_layernorm.weight"],
            f"{to}post_attention_layernorm.weight": ranks[0][f"{at}pre_mlp_layernorm.weight"],
        }  # fmt: skip
    return found | {
        "model.embed_tokens.weight": rows("embedding.word_embeddings.weight"),
        "lm_head.weight": rows("output_layer.weight"),
        "model.norm.weight": ranks[0]["decoder.final_layernorm.weight"],
    }


@pytest.mark.timeout(600)
def test_a_model_of_two_ranks(tmp_path: Path) -> None:
    source = saved(tmp_path)
    target = there("megatron_llama", source, tmp_path / "target")
    same_bytes(
        stored(target), joined([torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)])
    )
