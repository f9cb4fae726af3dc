"""A LLaMA of hundreds of megabytes that takes next to no disk: its norms are written, all else is a hole."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

from tests.support.checkpoint import INDEX, trained

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "torch_dtype": "bfloat16",
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 32000, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "rope_theta": 10000.0, "max_position_embeddings": 4096,
}  # fmt: skip
LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm": (2048,), "post_attention_layernorm": (2048,),
    "self_attn.q_proj": (2048, 2048), "self_attn.k_proj": (2048, 2048), "self_attn.v_proj": (2048, 2048),
    "self_attn.o_proj": (2048, 2048), "mlp.gate_proj": (5632, 2048), "mlp.up_proj": (5632, 2048),
    "mlp.down_proj": (2048, 5632),
}  # fmt: skip


def llama(folder: Path, shards: int = 1) -> Path:
    """Write it, in one file or several."""
    folder.mkdir()
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32000, 2048)}
    for layer in range(4):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in LAYER.items()}
    shapes |= {"model.norm.weight": (2048,), "lm_head.weight": (32000, 2048)}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if shards == 1:
        _write(folder / "model.safetensors", shapes)
        return folder
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    placed = {key: names[at * shards // len(shapes)] for at, key in enumerate(shapes)}
    for name in names:
        _write(folder / name, {key: shape for key, shape in shapes.items() if placed[key] == name})
    total = sum(2 * math.prod(shape) for shape in shapes.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": placed}))
    return folder


def _write(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    header, end = dict[str, object](), 0
    for key, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        begin, at = file.tell(), 0
        for key, shape in shapes.items():
            if len(shape) == 1:
                file.seek(begin + at)
                file.write(trained(key, shape, "BF16").data)
            at += 2 * math.prod(shape)
        file.truncate(begin + end)


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())
