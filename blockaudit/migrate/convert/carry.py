"""Files beside the weights that belong to the model and that no map changes: tokenizer, generation config, licence."""

from __future__ import annotations

import fnmatch
import os

from blockaudit.checkpoint.folder import is_sidecar
from blockaudit.checkpoint.links import leads_out
from blockaudit.records.checkpoint import Checkpoint

# What transformers and its tokenizers read beside config.json and the weights, and what a model card may not lose.
_NAMES = (
    "generation_config.json", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "chat_template*",
    "added_tokens.json", "spiece.model", "sentencepiece.bpe.model", "normalizer.json", "preprocessor_config.json",
    "processor_config.json", "LICENSE*", "LICENCE*", "NOTICE*", "README*",
)  # fmt: skip


def carried(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Names of the files that go along, sorted: regular files of SOURCE's folder, and no link that leads out of it.

    Of a weight file that lies alone, without a config.json beside it, none: its neighbours need not be its own.
    """
    folder = checkpoint.folder
    if checkpoint.config is None and not os.path.isdir(checkpoint.source):
        return ()
    weights = {file.name for file in checkpoint.files}
    names = (n for n in sorted(os.listdir(folder)) if goes_along(n))
    return tuple(n for n in names if n not in weights and not is_sidecar(n) and _plain(folder, n))


def goes_along(name: str) -> bool:
    """Whether a file is carried for its name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _NAMES)


def _plain(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, name)) and not leads_out(folder, name)
