"""Phi-3 as LLaMA, and the experts of Mixtral apart or stacked: both ends are transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Drawn, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, stored, there


def _model(sizes: Sizes, name: str, *, tied: bool = False, **more: Any) -> Any:
    """A model of transformers, its weights drawn; gains far from 1."""
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=sizes.vocab, hidden_size=sizes.d_model, intermediate_size=sizes.d_ff,
        num_hidden_layers=sizes.n_layers, num_attention_heads=sizes.n_heads, num_key_value_heads=sizes.n_kv,
        max_position_embeddings=sizes.n_ctx, pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_theta=5000.0,
        tie_word_embeddings=tied, **more,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    draw = Drawn(5)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            tensor.copy_(draw.gain(len(tensor)) if key.endswith("norm.weight") else draw.matrix(*tensor.shape))
    return model


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
def test_phi3(tmp_path: Path, sizes: Sizes, *, tied: bool) -> None:
    model = _model(sizes, "Phi3", tied=tied)
    model.save_pretrained(tmp_path / "source")
    target = there("phi3_llama", tmp_path / "source", tmp_path / "target")
    agree(computed(target, tokens(sizes)), _logits(model, tokens(sizes)))
    same_bytes(back("phi3_llama", target, tmp_path / "again"), stored(tmp_path / "source"))


def test_phi3_with_a_window_is_no_llama(tmp_path: Path) -> None:
    from blockaudit.pipeline.mapping import check_map

    _model(PLAIN, "Phi3", sliding_window=4).save_pretrained(tmp_path / "source")
    report = check_map("phi3_llama", tmp_path / "source")
    assert [f.name for f in report.findings] == ["topology-change-needs-retraining"]
    assert "decoder.self_attention.window" in report.findings[0].message


def test_experts_stacked(tmp_path: Path) -> None:
    model = _model(PLAIN, "Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    model.save_pretrained(tmp_path / "source")
    assert "model.layers.1.block_sparse_moe.experts.3.w2.weight" in stored(tmp_path / "source")
    target = there("mixtral_stacked", tmp_path / "source", tmp_path / "target")
    agree(computed(target, tokens(PLAIN)), _logits(model, tokens(PLAIN)))
    same_bytes(back("mixtral_stacked", target, tmp_path / "again"), stored(tmp_path / "source"))
    # The target's tensors are the very ones that the class has in memory.
    own = model.state_dict()
    assert all(torch.equal(own[key], tensor) for key, tensor in stored(target).items())
