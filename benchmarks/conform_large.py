"""LLaMA checkpoints with real values, as wide and as deep as asked for: for `blockaudit conform`, which reads them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_CODES = {torch.float32: "F32", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class Shape:
    """A LLaMA of one size; the defaults are the 7B model's width."""

    layers: int
    d_model: int = 4096
    d_ff: int = 11008
    heads: int = 32
    vocab: int = 32000
    dtype: torch.dtype = torch.bfloat16

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer as it is stored."""
        return sum(math.prod(shape) for _, shape in self.layer(0)) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors()) * self.dtype.itemsize

    def layer(self, number: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        d, at = self.d_model, f"model.layers.{number}"
        yield f"{at}.input_layernorm.weight", (d,)
        for name in "qkvo":
            yield f"{at}.self_attn.{name}_proj.weight", (d, d)
        yield f"{at}.post_attention_layernorm.weight", (d,)
        for name in ("gate", "up"):
            yield f"{at}.mlp.{name}_proj.weight", (self.d_ff, d)
        yield f"{at}.mlp.down_proj.weight", (d, self.d_ff)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "model.embed_tokens.weight", (self.vocab, self.d_model)
        for number in range(self.layers):
            yield from self.layer(number)
        yield "model.norm.weight", (self.d_model,)
        yield "lm_head.weight", (self.vocab, self.d_model)

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": self.d_model,
            "intermediate_size": self.d_ff,
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.heads,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": str(self.dtype).removeprefix("torch."),
            "vocab_size": self.vocab,
        }


def write(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """Write a checkpoint of one shard; the folder is made. Values are cut out of one pool, no two tensors alike."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    pool = (0.02 * torch.randn(1 << 23, generator=generator)).to(shape.dtype)
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, size in shape.tensors():
        start, end = end, end + math.prod(size) * shape.dtype.itemsize
        entries[key] = {"dtype": _CODES[shape.dtype], "shape": size, "data_offsets": (start, end)}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for turn, (_, size) in enumerate(shape.tensors()):
            # A norm's gains stand around one.
            own = (1 + pool[: size[0]].float()).to(shape.dtype) if len(size) == 1 else pool
            data = own.roll(4099 * turn).view(torch.uint8).numpy().data
            left = math.prod(size) * shape.dtype.itemsize
            while left > 0:
                left -= file.write(data[:left])
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2))
    return folder
