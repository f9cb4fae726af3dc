"""Names that manifests use for what configs and modules call by many: labels, and evidence of nothing."""

from __future__ import annotations

from keyword import iskeyword

SYMBOLS: dict[str, str] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim"), "d_model"),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), "n_layers"),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), "n_dec"),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), "n_heads"),
    "decoder_attention_heads": "n_heads_dec",
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), "n_kv"),
    **dict.fromkeys(("head_dim", "d_kv"), "d_head"),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "ffn_hidden_size"), "d_ff"),
    "decoder_ffn_dim": "d_ff_dec",
    **dict.fromkeys(("vocab_size",), "vocab"),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), "n_ctx"),
    "type_vocab_size": "n_types",
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), "n_experts"),
    "moe_intermediate_size": "d_moe",
}
_CALLED = {"min", "max", "len", "sqrt", "ceil", "l"}
ROLES: dict[str, str] = {
    **dict.fromkeys(("q_proj", "query", "q", "q_lin", "query_proj", "wq", "q_linear"), "q"),
    **dict.fromkeys(("k_proj", "key", "k", "k_lin", "key_proj", "wk", "k_linear"), "k"),
    **dict.fromkeys(("v_proj", "value", "v", "v_lin", "value_proj", "wv", "v_linear"), "v"),
    **dict.fromkeys(("o_proj", "out_proj", "o", "out_lin", "wo", "o_linear"), "o"),
    **dict.fromkeys(("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "att_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "wi_0", "w1"), "gate"),
    **dict.fromkeys(("up_proj", "fc1", "wi_1", "c_fc", "lin1", "w3", "wi", "fc_in", "ffn"), "up"),
    **dict.fromkeys(("down_proj", "fc2", "w2", "lin2", "fc_out", "ffn_output"), "down"),
    **dict.fromkeys(("gate_up_proj", "input_linear"), "gate_up"),
}  # fmt: skip
EMBEDDINGS: dict[str, str] = {
    **dict.fromkeys(("embed_tokens", "wte", "word_embeddings", "shared", "embeddings", "tok_embeddings", "embed_in",
                     "tokens_embed", "word_embedding"), "tokens"),
    **dict.fromkeys(("embed_positions", "wpe", "position_embeddings", "positions_embed"), "positions"),
    **dict.fromkeys(("token_type_embeddings",), "types"),
}  # fmt: skip


def symbol(key: str, taken: set[str]) -> str:
    """The symbol of a config key, new among those taken."""
    wanted = SYMBOLS.get(key, key)
    if wanted in taken or wanted in _CALLED or iskeyword(wanted) or not wanted.isidentifier():
        wanted = key
    wanted = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted)
    while wanted in taken or wanted in _CALLED or iskeyword(wanted):
        wanted += "_"
    return wanted


def roles(modules: list[str], known: dict[str, str], prefix: str = "") -> dict[str, str]:
    """A role for each of the modules of one owner: the word for its last name, and more of its path where two agree."""
    found: dict[str, str] = {}
    for depth in range(1, 8):
        left = [m for m in modules if m not in found]
        if not left:
            break
        named = {m: prefix + _role(m, depth, known) for m in left}
        values = [*named.values(), *found.values()]
        found |= {m: r for m, r in named.items() if values.count(r) == 1}
    return found | {m: m for m in modules if m not in found}


def _role(module: str, depth: int, known: dict[str, str]) -> str:
    parts = [p for p in module.split(".") if not p.startswith("{")]
    tail = parts[-depth:]
    return ".".join([*tail[:-1], known.get(tail[-1], tail[-1])])
