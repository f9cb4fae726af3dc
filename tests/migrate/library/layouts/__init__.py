"""Tiny models in the layouts of other tools: a module each, written from the equations, with no code of those tools.

Each has `config(sizes)` (native names), `weights(sizes, seed)` and `logits(weights, config, ids)` in plain torch, so
that a converted checkpoint can be held against numbers that no code of ours or of transformers made.
"""
