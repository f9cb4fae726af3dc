"""The candidate as a thing that can be recorded: a Hugging Face class without its weights, or a user's own module."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from blockaudit.errors import RequestError, told
from blockaudit.graph import live, record, upstream
from blockaudit.graph.record import Recording
from blockaudit.graph.weightless import Weightless
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.trace.weights import Matrix, Weights

Inputs = Mapping[str, torch.Tensor]
_LEGACY = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))


@dataclass(frozen=True)
class Model:
    """A candidate in one dtype.

    `record` gives the operators of one forward pass on inputs of these shapes, `weight` a parameter by its name on the
    run's device, `key` the checkpoint's key of a parameter (None: the module holds it itself), `matrix` one that is
    too large to be held whole.
    """

    label: str
    dtype: torch.dtype
    record: Callable[[Inputs], Recording]
    weight: Callable[[str], torch.Tensor]
    key: Callable[[str], str | None]
    takes: frozenset[str]  # names of the inputs that its forward takes
    streamed: bool
    matrix: Callable[[str], Matrix | None] = lambda name: None
    touched: set[str] = field(default_factory=set[str])  # inputs that it wrote into


def hugging_face(
    checkpoint: Checkpoint, config: Mapping[str, Any], dtype: torch.dtype, weights: Weights, code: str | None = None
) -> Model:
    """The class that config.json names, its weights read from the checkpoint one by one as they are used.

    Where the class holds them in another layout than the file (experts that are fused on loading), they are loaded
    whole by transformers itself. Raises RequestError.
    """
    model = _built(config, dtype, code)
    keys = _keys(model, checkpoint)
    read = [names for names in _names(model).values() if not any(n in keys for n in names)]
    if read:
        # What no operator reads (a pooler that a checkpoint lacks) is no reason to load it all.
        first = live.record_model(model, record.example(model))
        used = {first.names[str(n.target)] for n in first.nodes if n.op == "get_attr" and n.users}
        read = [names for names in read if used & set(names)]
    version = f"{type(model).__name__}, transformers {upstream.transformers().__version__}"
    takes = _takes(model)
    if not read:
        types = {n: p.dtype for n, p in model.named_parameters(remove_duplicate=False)}
        types |= {n: b.dtype for n, b in model.named_buffers(remove_duplicate=False)}
        return Model(
            version, dtype, lambda i: live.record_model(model, i), lambda n: weights.tensor(keys[n], types[n]),
            keys.get, takes, True, lambda n: weights.matrix(keys[n], types[n]) if n in keys else None,
        )  # fmt: skip
    whole = _loaded(checkpoint, type(model), dtype)
    held = {n: t.detach() for n, t in whole.named_parameters(remove_duplicate=False)}
    held |= {n: t.detach() for n, t in whole.named_buffers(remove_duplicate=False)}
    return Model(
        version, dtype, lambda i: live.record_model(whole, i), lambda n: held[n].to(weights.device), lambda n: None,
        takes, False,
    )  # fmt: skip


def own(made: torch.nn.Module, label: str, dtype: torch.dtype, device: torch.device) -> Model:
    """A user's module, with the weights that it holds."""
    made = made.eval()
    held = {n: t.detach() for n, t in made.named_parameters(remove_duplicate=False)}
    held |= {n: t.detach() for n, t in made.named_buffers(remove_duplicate=False)}

    touched: set[str] = set()

    def recorded(inputs: Inputs) -> Recording:
        given = {name: value.clone() for name, value in inputs.items()}
        found = record.record_module(made, given)
        touched.update(name for name, value in given.items() if not torch.equal(value, inputs[name]))
        return found

    takes = _takes(made)
    return Model(
        label, dtype, recorded, lambda n: held[n].to(device), lambda n: None, takes, False, touched=touched
    )  # fmt: skip


def _built(config: Mapping[str, Any], dtype: torch.dtype, code: str | None) -> Any:
    """The class without its large weights: their values come from the checkpoint, one by one."""
    library = upstream.transformers()
    before = torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen, cls = record.chosen(library, dict(config), code)
            chosen._attn_implementation = "eager"
            chosen._experts_implementation = "batched_mm"
            chosen.dtype = dtype
            torch.set_default_dtype(dtype)
            with Weightless():
                model = cls._from_config(chosen, dtype=dtype).eval()
            _keep_wide(model, dtype)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # model code may raise anything at all: it is the thing under audit
        raise RequestError(f"the candidate cannot be built: {told(error)}") from error
    finally:
        torch.set_default_dtype(before)
    return model


def _keep_wide(model: Any, dtype: torch.dtype) -> None:
    """Modules that the class keeps in a wider dtype when it is loaded (T5's `wo` in float16)."""
    plan: Mapping[str, torch.dtype] = model._get_dtype_plan(dtype) if hasattr(model, "_get_dtype_plan") else {}
    for pattern, wide in plan.items():
        # transformers 5.24, modeling_utils: a module's name somewhere in the key, as a whole word.
        names = re.compile(rf"(^|\.){pattern}($|\.)")
        for name, parameter in model.named_parameters():
            if names.search(name) and parameter.dtype != wide:
                parameter.data = parameter.data.to(wide)


def _names(model: Any) -> dict[int, list[str]]:
    """Every name of every parameter and stored buffer: tied ones have several."""
    stored = set(model.state_dict())
    found: dict[int, list[str]] = {}
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, value in every:
        if name in stored:
            found.setdefault(id(value), []).append(name)
    return found


def _keys(model: Any, checkpoint: Checkpoint) -> dict[str, str]:
    """Parameter name -> key on disk, where one of the same shape is there; ties share one."""
    prefix = f"{model.base_model_prefix}." if getattr(model, "base_model_prefix", "") else ""
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items()}
    found: dict[str, str] = {}
    for names in _names(model).values():
        spellings = [s for n in names for s in _spellings(n, prefix)]
        key = next((s for s in spellings if s in checkpoint.tensors), None)
        if key is not None and checkpoint.tensors[key].shape == shapes[names[0]]:
            found |= dict.fromkeys(names, key)
    return found


def _spellings(name: str, prefix: str) -> list[str]:
    plain = name.removeprefix(prefix)
    every = [name, prefix + name, plain]
    return every + [s.replace(new, old) for s in every for new, old in _LEGACY if s.endswith(new)]


def _loaded(checkpoint: Checkpoint, cls: Any, dtype: torch.dtype) -> Any:
    """The whole model, as transformers loads it. Raises RequestError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, info = cls.from_pretrained(
                checkpoint.folder, dtype=dtype, attn_implementation="eager", experts_implementation="batched_mm",
                output_loading_info=True, local_files_only=True,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # model code may raise anything at all
        raise RequestError(f"{checkpoint.source}: transformers cannot load it: {told(error)}") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise RequestError(
            f"{checkpoint.source}: {cls.__name__} has {len(missing)} parameters that the checkpoint lacks "
            f"(the first is {missing[0]}): what it would put in their place is random"
        )
    return model.eval()


def _takes(module: torch.nn.Module) -> frozenset[str]:
    import inspect

    takes = inspect.signature(module.forward).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    return frozenset(takes) | frozenset({"attention_mask"} if free else ())
