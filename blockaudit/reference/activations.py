"""Activations as formulas, by the names that config.json uses (transformers 5.24.0: activations.py, ACT2CLS)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """The product x * Phi(x), Phi the distribution function of the standard normal (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU (Hendrycks and Gimpel 2016, section 2)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x: Tensor) -> Tensor:
    """The product x * sigmoid(1.702 x), the logistic approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


def silu(x: Tensor) -> Tensor:
    """The product x * sigmoid(x) (Elfwing, Uchibe and Doya 2017)."""
    return x * torch.sigmoid(x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return torch.clamp(x, min=0)


def relu2(x: Tensor) -> Tensor:
    """max(x, 0) squared (So et al. 2021, Primer)."""
    return relu(x) ** 2


def linear(x: Tensor) -> Tensor:
    """The identity."""
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
    "swish": silu,
    "relu": relu,
    "relu2": relu2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": linear,
}
