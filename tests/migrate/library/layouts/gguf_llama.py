"""LLaMA as llama.cpp stores it: its own names, and the rows of q and k so that 2 i and 2 i + 1 are a pair.

Names: gguf 0.19.0, gguf/constants.py: TENSOR_NAMES. Rows of q and k: ggml-org/llama.cpp @ a458664,
convert_hf_to_gguf.py: LlamaModel.permute. The file is written by the gguf package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, heads, rms_norm, turned
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]
_SHAPES = {"attn_q": "qd", "attn_k": "kd", "attn_v": "kd", "attn_output": "dq",
           "ffn_gate": "fd", "ffn_up": "fd", "ffn_down": "df"}  # fmt: skip


def config(sizes: Sizes, *, theta: float = 5000.0) -> dict[str, Any]:
    """The metadata, without `llama.` in front."""
    return {
        "embedding_length": sizes.d_model, "block_count": sizes.n_layers, "feed_forward_length": sizes.d_ff,
        "attention.head_count": sizes.n_heads, "attention.head_count_kv": sizes.n_kv, "vocab_size": sizes.vocab,
        "attention.key_length": sizes.d_head, "attention.value_length": sizes.d_head, "context_length": sizes.n_ctx,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": theta, "rope.dimension_count": sizes.d_head,
    }  # fmt: skip


def weights(sizes: Sizes, seed: int, *, tied: bool = False) -> Weights:
    draw, d = Drawn(seed), sizes.d_model
    long = {"d": d, "q": sizes.n_heads * sizes.d_head, "k": sizes.n_kv * sizes.d_head, "f": sizes.d_ff}
    found: Weights = {"token_embd.weight": draw.matrix(sizes.vocab, d)}
    for n in range(sizes.n_layers):
        for name, (out, into) in _SHAPES.items():
            found[f"blk.{n}.{name}.weight"] = draw.matrix(long[out], long[into])
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{n}.{name}.weight"] = draw.gain(d)
    found["output_norm.weight"] = draw.gain(d)
    if not tied:
        found["output.weight"] = draw.matrix(sizes.vocab, d)
    return found


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, vocab] of ids [batch, tokens]."""
    epsilon, theta = given["attention.layer_norm_rms_epsilon"], given["rope.freq_base"]
    # Positions over `factor` (Chen et al. 2023): every pair counts as slow.
    stretch = (given["rope.scaling.factor"], 1e9, 2e9, 1.0) if "rope.scaling.factor" in given else None
    x = found["token_embd.weight"][ids]
    for n in range(given["block_count"]):
        w = {name: found[f"blk.{n}.{name}.weight"] for name in (*_SHAPES, "attn_norm", "ffn_norm")}
        h = rms_norm(x, w["attn_norm"], epsilon)
        q = heads(h @ w["attn_q"].T, given["attention.head_count"])
        k, v = (heads(h @ w[name].T, given["attention.head_count_kv"]) for name in ("attn_k", "attn_v"))
        q, k = (turned(t, theta, pairs="interleaved", stretch=stretch) for t in (q, k))
        x = x + attended(q, k, v) @ w["attn_output"].T
        h = rms_norm(x, w["ffn_norm"], epsilon)
        x = x + (F.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    return rms_norm(x, found["output_norm.weight"], epsilon) @ found.get("output.weight", found["token_embd.weight"]).T


def save(found: Weights, given: dict[str, Any], folder: Path, dtype: str = "F32") -> Path:
    """Write model.gguf, its matrices in `dtype` (F32, F16, BF16, Q8_0); norms are F32, as llama.cpp keeps them."""
    import gguf

    folder.mkdir(parents=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    for key, value in given.items():
        add: Any = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"llama.{key}", value)
    for key, tensor in found.items():
        kind = gguf.GGMLQuantizationType[dtype if tensor.ndim == 2 else "F32"]
        writer.add_tensor(key, gguf.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder
