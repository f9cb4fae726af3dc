"""Record one forward pass of the class that config.json names, under fake tensors: operators, operands, names.

Nothing is downloaded, no weight is loaded, and code that comes with a checkpoint is not run: only classes that the
installed transformers ships are built.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from blockaudit.graph.fused import FUSED

# Sizes that no dimension of a model is likely to have, so that shapes tell rows from channels.
BATCH, LENGTH, MEMORY = 2, 7, 13


@dataclass(frozen=True)
class Recording:
    """One forward pass. `hidden` maps a stack to the value that leaves it; `names` gives parameters their names."""

    module: GraphModule
    names: dict[str, str]  # get_attr target -> parameter or buffer name
    constants: dict[str, torch.Tensor]  # buffers whose value is known
    hidden: dict[str, Node]
    logits: Node | None
    class_name: str
    version: str
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])  # shapes of the parameters

    @property
    def nodes(self) -> list[Node]:
        return list(self.module.graph.nodes)


class RecordingError(Exception):
    """The class cannot be built or run without its weights; the message says why."""


def record(config: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16) -> Recording:
    """Build the class that `config` names in `dtype` under fake tensors and record one forward pass in eval mode.

    Raises RecordingError.
    """
    # Models are built from a config alone; a hub must not be asked for anything.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _record(transformers, dict(config), dtype)
        except Exception as error:  # model code may raise anything at all: it is the thing under audit
            raise RecordingError(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error


def _class(transformers: Any, config: Any, data: Mapping[str, Any]) -> Any:
    """The named class where the library has it, else the auto class's choice for the config."""
    for name in cast("list[str]", data.get("architectures") or []):
        found = getattr(transformers, name, None)
        if found is not None and found.__module__.startswith("transformers."):
            return found
    return transformers.AutoModelForCausalLM._model_mapping[type(config)]


def _record(transformers: Any, data: dict[str, Any], dtype: torch.dtype) -> Recording:
    model_type = data.get("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise ValueError(f"transformers {transformers.__version__} has no model type {model_type!r} to build")
    config = transformers.CONFIG_MAPPING[model_type].from_dict({k: v for k, v in data.items() if k != "auto_map"})
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    config.dtype = dtype
    cls = _class(transformers, config, data)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with fake:
            model = cls._from_config(config, dtype=dtype).eval()
    finally:
        torch.set_default_dtype(before)
    with fake:
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        extra = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
        if getattr(config, "add_cross_attention", False) and not config.is_encoder_decoder:
            extra["encoder_hidden_states"] = torch.zeros(BATCH, MEMORY, config.hidden_size, dtype=dtype)
    traced, outputs = _trace(model, fake, {"input_ids": ids, "attention_mask": mask, **extra})
    return _recording(traced, outputs, model, transformers.__version__)


def _trace(model: Any, fake: Any, inputs: dict[str, torch.Tensor]) -> tuple[GraphModule, list[str]]:
    """The recorded graph, and what its outputs are called."""
    base = model.base_model
    # Some heads call the decoder without the base model around it, and some bases are the model itself.
    watched = [base] if base is not model else []
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if isinstance(decoder, torch.nn.Module) and decoder is not base and decoder is not model:
        watched.append(decoder)
    seen: dict[str, Any] = {}

    def keep(_module: Any, _args: Any, output: Any) -> None:
        for name, key in (("last", "last_hidden_state"), ("encoder", "encoder_last_hidden_state")):
            value = getattr(output, key, None)
            if value is not None:
                seen[name] = value

    names: list[str] = []

    def forward(*values: Any) -> list[Any]:
        given = dict(zip(inputs, values, strict=True))
        seen.clear()
        if "encoder_hidden_states" in given:
            seen["encoder"] = given["encoder_hidden_states"]
        handles = [module.register_forward_hook(keep) for module in watched]
        try:
            with torch.no_grad():
                output = model(**given, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        keep(None, None, output)
        found = {"logits": getattr(output, "logits", None), "last": seen.get("last"), "encoder": seen.get("encoder")}
        names[:] = [n for n, v in found.items() if v is not None]
        return [found[n] for n in names]

    with fake:
        traced = make_fx(forward, tracing_mode="real", _allow_non_fake_inputs=True)(*inputs.values())
    return traced, names


def record_module(module: torch.nn.Module, example_inputs: Mapping[str, torch.Tensor] | None = None) -> Recording:
    """Record one forward pass of any module that takes `input_ids` and `attention_mask` as keywords.

    In-place writes, also those through views, become values of their own, and fused sums the sums that they are.
    Raises RecordingError.
    """
    inputs = dict(example_inputs) if example_inputs is not None else example(module)
    module = module.eval()
    names: list[str] = []

    def forward(*values: Any) -> list[Any]:
        with torch.no_grad():
            found = _outputs(module(**dict(zip(inputs, values, strict=True))))
        names[:] = list(found)
        return list(found.values())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Under functionalize an in-place write is a new value, whichever view it was written through.
            pure: Any = torch.func.functionalize(forward)
            trace = make_fx(pure, FUSED, tracing_mode="real", _allow_non_fake_inputs=True)
            return _recording(trace(*inputs.values()), names, module, "")
        except Exception as error:  # a user's code may raise anything at all: it is the thing under audit
            raise RecordingError(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error


def example(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tokens that say nothing, and a mask where the module takes one."""
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    takes = inspect.signature(module.forward).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    mask = {"attention_mask": torch.ones_like(ids)} if free or "attention_mask" in takes else {}
    return {"input_ids": ids, **mask}


def _outputs(output: Any) -> dict[str, Any]:
    """Logits and the last state of a Hugging Face output, a dict, a tuple or a plain tensor."""
    if isinstance(output, torch.Tensor):
        return {"logits": output}
    if isinstance(output, tuple | list):
        return {"logits": cast("Any", output[0])}
    fields = cast("Any", output if isinstance(output, Mapping) else vars(output))
    found = {"logits": fields.get("logits"), "last": fields.get("last_hidden_state")}
    return {k: v for k, v in found.items() if v is not None}


def _recording(traced: GraphModule, outputs: list[str], model: Any, version: str) -> Recording:
    by_id = {id(p): n for n, p in (*model.named_parameters(), *model.named_buffers())}
    names: dict[str, str] = {}
    constants: dict[str, torch.Tensor] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = getattr(traced, node.target)
            names[node.target] = by_id.get(id(value), "")
            constant = getattr(value, "constant", None) if hasattr(value, "fake_mode") else value
            if constant is not None and constant.numel() <= 4096 and not isinstance(value, torch.nn.Parameter):
                constants[node.target] = constant
    sizes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    last = next(n for n in reversed(list(traced.graph.nodes)) if n.op == "output")
    values = dict(zip(outputs, last.args[0], strict=True))
    hidden = {k: v for k, v in (("decoder", values.get("last")), ("encoder", values.get("encoder"))) if v is not None}
    return Recording(traced, names, constants, hidden, values.get("logits"), type(model).__name__, version, sizes)
