"""The one way to transformers for what a user runs: offline, and with none of its helpers talking into the report."""

from __future__ import annotations

import logging
import os
from typing import Any

# What these say is not about the model: fake tensors log a traceback for every operator that they refuse (the reason is
# in the report), and torchao, which transformers imports where it is installed, tells of every kernel without a device.
_TALKATIVE = ("torch._subclasses.fake_tensor", "torch.utils._pytree", "torchao")


def hush() -> None:
    """Before anything imports transformers, a user's own file too."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def transformers() -> Any:
    """The library, imported. Models are built from a config alone: a hub must not be asked for anything."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    hush()
    import transformers as library

    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library
