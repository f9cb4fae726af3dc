"""A small map and the source it moves, in a layout of nobody's, and `blockaudit map check` run on them.

The source is a LLaMA of width 16 under Meta's names (numbers are those of a seed), its config under names of our own.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from blockaudit.cli.main import run
from tests.support.audit import Outcome

D, FF, HEADS, KV, VOCAB, LAYERS = 16, 24, 4, 2, 32, 2
HEAD = D // HEADS
P, Q = "layers.{l}.", "model.layers.{l}."
QKV = [f"{Q}self_attn.{name}_proj.weight" for name in "qkv"]
CONFIG: dict[str, Any] = {
    "dim": D, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": KV, "vocab_size": VOCAB, "norm_epsilon": 1e-5,
    "intermediate_size": FF,
}  # fmt: skip
RENAMED = {
    "norm_epsilon": "rms_norm_eps", "dim": "hidden_size", "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads",
}  # fmt: skip


@dataclass
class Case:
    """A map and its source before they are written."""

    map: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]
    config: dict[str, Any] | None = field(default_factory=lambda: copy.deepcopy(CONFIG))

    def rule(self, to: str) -> dict[str, Any]:
        """The rule that feeds a template (its last words)."""
        return next(r for r in self.map["rules"] if to in str(r["to"]))

    def without(self, to: str) -> None:
        self.map["rules"].remove(self.rule(to))


Edit = Callable[[Case], None]


def rule(from_: Any, to: Any, *ops: dict[str, Any]) -> dict[str, Any]:
    return {"from": from_, "to": to, **({"ops": list(ops)} if ops else {})}


def rope(heads: str) -> dict[str, Any]:
    return {"op": "permute_rope", "heads": heads}


def layout(name: str = "qkv") -> dict[str, Any]:
    return {"op": "split", "dim": 0, "layout": name, "heads": "n_heads", "kv_heads": "n_kv"}


def apart() -> Case:
    """q, k and v in tensors of their own, interleaved as Meta has them."""
    attention = [
        rule(P + "attention.wq.weight", QKV[0], rope("n_heads")),
        rule(P + "attention.wk.weight", QKV[1], rope("n_kv")),
        rule(P + "attention.wv.weight", QKV[2]),
    ]
    shapes = {"wq": (D, D), "wk": (KV * HEAD, D), "wv": (KV * HEAD, D)}
    return _case(attention, {f"attention.{name}.weight": shape for name, shape in shapes.items()})


def fused() -> Case:
    """q, k and v in one tensor, input first."""
    attention = [rule(P + "attention.wqkv.weight", QKV, {"op": "transpose"}, layout())]
    return _case(attention, {"attention.wqkv.weight": (D, (HEADS + 2 * KV) * HEAD)})


def _case(attention: list[dict[str, Any]], shapes: dict[str, tuple[int, ...]]) -> Case:
    rules = [
        rule("tok_embeddings.weight", "model.embed_tokens.weight"),
        rule("norm.weight", "model.norm.weight"),
        rule("output.weight", "lm_head.weight"),
        rule(P + "attention_norm.weight", Q + "input_layernorm.weight"),
        rule(P + "ffn_norm.weight", Q + "post_attention_layernorm.weight"),
        rule(P + "attention.wo.weight", Q + "self_attn.o_proj.weight"),
        rule(P + "feed_forward.w1.weight", Q + "mlp.gate_proj.weight"),
        rule(P + "feed_forward.w3.weight", Q + "mlp.up_proj.weight"),
        rule(P + "feed_forward.w2.weight", Q + "mlp.down_proj.weight"),
    ]
    layer = {
        "attention_norm.weight": (D,), "ffn_norm.weight": (D,), "attention.wo.weight": (D, D), **shapes,
        "feed_forward.w1.weight": (FF, D), "feed_forward.w3.weight": (FF, D), "feed_forward.w2.weight": (D, FF),
    }  # fmt: skip
    whole = {"tok_embeddings.weight": (VOCAB, D), "norm.weight": (D,), "output.weight": (VOCAB, D)}
    whole |= {f"layers.{n}.{name}": shape for n in range(LAYERS) for name, shape in layer.items()}
    numbers = np.random.default_rng(0)
    tensors = {key: numbers.standard_normal(shape).astype(np.float32) for key, shape in whole.items()}
    map_ = {
        "schema": "blockaudit/map/1", "name": "hand made", "target": "llama", "config": dict(RENAMED),
        "rules": [*rules, *attention],
    }  # fmt: skip
    return Case(map_, tensors)


def write(case: Case, folder: Path) -> tuple[Path, Path]:
    """The map's file and the source's folder."""
    source, file = folder / "source", folder / "map.json"
    source.mkdir()
    save_file(case.tensors, source / "model.safetensors")
    if case.config is not None:
        (source / "config.json").write_text(json.dumps(case.config))
    file.write_text(json.dumps(case.map, indent=1))
    return file, source


def command(*argv: str) -> Outcome:
    """A command line in this process, its JSON read."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(list(argv))
    text = out.getvalue()
    return Outcome(status, json.loads(text) if text.startswith("{") else None, err.getvalue(), text)


def check(case: Case, folder: Path, *argv: str) -> Outcome:
    """`map check` of a case on its own source."""
    file, source = write(case, folder)
    return command("map", "check", str(file), "--source", str(source), "--format", "json", *argv)
