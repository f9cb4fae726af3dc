"""The vocabulary of config.json is not the number of rows that are stored.

What it means:
    Embedding or head rows, config.json and the tokenizer give up to three numbers.

Why it matters:
    Token ids past the end fail at run time, or rows are cut.

Example:
    vocab_size is 32,000 and model.embed_tokens.weight has 32,001 rows.

What to do:
    Make config.json, tokenizer and embedding agree (resize_token_embeddings writes both).
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.checkpoint.tokenizer import tokenizer_size
from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.shapes import WrongDimension
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, shown

RULE = Rule(
    "S103",
    "vocab-size-mismatch",
    "make config.json, tokenizer and embedding agree (resize_token_embeddings writes both)",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Wrong dimensions that explain the shapes."""
    for d in audit.reconciled.shapes.dimensions if audit.reconciled else ():
        if d.symbol == "vocab":
            others = ", ".join(f"{s} = {v}" for s, v in d.alternatives)
            yield RULE.finding(
                f"dims.{d.symbol}",
                f"{d.symbol} is {shown(d.declared)} by {d.source} and {d.found} by {len(d.tensors)} tensors"
                + (f" (headers cannot tell it from {others})" if others else "")
                + _tokenizer(audit, d),
                tensors=d.tensors,
                expected=d.declared,
                observed=d.found,
                evidence=f"{d.source}; {', '.join(d.templates[:3])}",
            )


def _tokenizer(audit: Audit, d: WrongDimension) -> str:
    """What the tokenizer beside the weights says, the third number, and which two of the three agree."""
    # A tokenizer that was saved with an adapter is the one that its rows were added for.
    folders = [*audit.checkpoint.apart.values(), audit.checkpoint.folder]
    size = next((found for folder in folders if (found := tokenizer_size(folder)) is not None), None)
    if size is None:
        return ""
    agrees = {d.declared: ", as config.json", d.found: ", as the tensors"}.get(size, ": no two agree")
    return f"; tokenizer.json has {size}{agrees}"
