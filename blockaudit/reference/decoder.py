"""The full reference: the model that a manifest declares, executed from formulas and the checkpoint's tensors alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from blockaudit.records.bound import BoundManifest, StackSpan
from blockaudit.reference import assembly
from blockaudit.reference.assembly import UnresolvedError
from blockaudit.reference.attention import Scene, attention, visible
from blockaudit.reference.embedding import embedded, entered, logits
from blockaudit.reference.feed_forward import feed_forward, routed
from blockaudit.reference.positions import Table, alibi_bias, distance_buckets, rotary_table
from blockaudit.reference.refusal import refusal
from blockaudit.reference.spec import AttentionSpec, RotarySpec, attention_spec, feed_forward_spec, inputs_spec
from blockaudit.reference.tensors import Tensors, Weights


@dataclass(frozen=True, slots=True)
class Stacked:
    """The inputs of one stack: ids and valid [B, S]; rotary tables and biases of scores, once they were asked for."""

    ids: Tensor
    valid: Tensor
    tables: dict[RotarySpec, Table] = field(default_factory=dict[RotarySpec, Table])
    biases: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, slots=True)
class Context:
    """What every layer of a run shares: the inputs of each stack, and the stack whose last state is the memory."""

    stacks: dict[str, Stacked]
    memory: str | None = None


class FullReference:
    """A bound manifest as a model. `weights(key)` gives a tensor of the checkpoint in `dtype` on `device`.

    Weights are asked for at each use and never kept. Everything is differentiable. Raises UnresolvedError, one line,
    where the manifest lacks something; `refusal` says so beforehand.
    """

    def __init__(
        self, bound: BoundManifest, weights: Weights, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.bound = bound
        self.dtype = dtype
        self.device = torch.device(device)
        self._weights = weights
        self._norm = assembly.exact(weights)
        self._attention: dict[str, AttentionSpec] = {}

    @staticmethod
    def refusal(bound: BoundManifest) -> str:
        """What a full reference lacks in the manifest, in one line; empty where it lacks nothing."""
        return refusal(bound)

    @property
    def spans(self) -> list[StackSpan]:
        """The stacks that run, in order."""
        return [s for s in self.bound.spans if not s.ignored]

    def context(self, inputs: Mapping[str, Tensor]) -> Context:
        """The inputs as the layers need them: input_ids, attention_mask [B, S] (1 valid, 0 padding, either side).

        The last of two stacks reads decoder_input_ids [B, T] and, where given, decoder_attention_mask.
        """
        names = [s.name for s in self.spans]
        stacks: dict[str, Stacked] = {}
        for name in names:
            of = "decoder_" if len(names) > 1 and name == names[-1] else ""
            ids = inputs[f"{of}input_ids"].to(self.device)
            mask = inputs.get(f"{of}attention_mask")
            valid = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(self.device).bool()
            stacks[name] = Stacked(ids, valid)
        return Context(stacks, names[0] if len(names) > 1 else None)

    def embed(self, stack: str, context: Context) -> Tensor:
        """The state before the embedding's norm: scale, positions and types applied. [B, S, d_model] (or d_embed)."""
        mine, scale = context.stacks[stack], assembly.number(self.bound, f"{stack}.embedding.scale")
        return embedded(inputs_spec(self.bound, stack), self._embedding(stack), scale, mine.ids, mine.valid)

    def enter(self, stack: str, x: Tensor) -> Tensor:
        """The state that enters the first layer, from the embedding after its norm: projected in ALBERT, else x."""
        return entered(inputs_spec(self.bound, stack), self._embedding(stack), x)

    def branch(
        self, stack: str, layer: int, branch: str, x: Tensor, context: Context, memory: Tensor | None = None
    ) -> Tensor:
        """The sublayer alone on what it reads, x [B, S, d_model]; memory [B, K, d_model] for cross-attention."""
        owner = assembly.owner(self.bound, stack, layer, branch)
        tensors = Tensors(self.bound, self._weights, owner, stack, layer)
        if "attention" not in str(self.bound.fields[f"{owner}.kind"].value):
            return feed_forward(feed_forward_spec(self.bound, owner), tensors, x)
        spec = self._attention_spec(owner)
        crossed = "cross" in str(self.bound.fields[f"{owner}.kind"].value)
        if crossed and (memory is None or context.memory is None):
            raise UnresolvedError(f"{owner}: reads a memory that no stack gives")
        scene = self._scene(stack, owner, spec, layer, context, memory if crossed else None)
        return attention(spec, tensors, x, layer, scene)

    def routes(self, stack: str, layer: int, branch: str, x: Tensor) -> Tensor | None:
        """The experts of each row of x [B, S, d_model], in ascending order [B, S, top_k]; None of a dense branch."""
        owner = assembly.owner(self.bound, stack, layer, branch)
        if "attention" in str(self.bound.fields[f"{owner}.kind"].value):
            return None
        spec = feed_forward_spec(self.bound, owner)
        if spec.routing is None:
            return None
        tensors = Tensors(self.bound, self._weights, owner, stack, layer)
        chosen = routed(spec.routing, tensors, x.flatten(0, -2))[1]
        return chosen.sort(-1).values.view(*x.shape[:-1], -1)

    def head(self, state: Tensor, context: Context | None = None) -> Tensor | None:
        """Logits [B, S, vocab] of the state after the final norm; None where the class has no language model head."""
        del context
        found = next((e for e in self.bound.expected if e.what == "part" and e.role == "lm_head"), None)
        if found is None:
            return None
        scale = assembly.number(self.bound, "logits.scale")
        softcap = assembly.value(self.bound, "logits.softcap") if "logits.softcap" in self.bound.fields else None
        part = Tensors(self.bound, self._weights, found.owner)
        y = logits(self.bound, part, self._embedding(self.spans[-1].name), state, scale, softcap)
        bias = Tensors(self.bound, self._weights, "parts.logits_bias")
        return y + bias.get("logits_bias") if bias.has("logits_bias") else y

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole model: every site by its canonical name, in order."""
        context, sites, state = self.context(inputs), dict[str, Tensor](), None
        for span in self.spans:
            before = f"{span.name}." if len(self.spans) > 1 else ""
            state = self._stack(span, context, state, before, sites)
        found = None if state is None else self.head(state, context)
        return sites if found is None else {**sites, "logits": found}

    def _stack(
        self, span: StackSpan, context: Context, memory: Tensor | None, before: str, sites: dict[str, Tensor]
    ) -> Tensor:
        """Run one stack; its sites are added to `sites`."""
        name = span.name
        x = sites[f"{before}embed"] = self.embed(name, context)
        norm = assembly.norm_site(self.bound, f"{name}.embed_norm")
        if norm is not None:
            x = sites[f"{before}embed_norm"] = self._norm(norm, x)
        x = self.enter(name, x)
        for layer in range(span.first, span.first + (span.run or 0)):

            def branch(of: str, y: Tensor, layer: int = layer) -> Tensor:
                return self.branch(name, layer, of, y, context, memory)

            found = assembly.layer(assembly.block(self.bound, name, layer), x, branch, self._norm)
            sites |= {f"{before}layers.{layer}.{site}": value for site, value in found.items()}
            x = found["state"]
        norm = assembly.norm_site(self.bound, f"{name}.final_norm")
        if norm is not None:
            x = sites[f"{before}final_norm"] = self._norm(norm, x)
        return x

    def _attention_spec(self, owner: str) -> AttentionSpec:
        if owner not in self._attention:
            self._attention[owner] = attention_spec(self.bound, owner)
        return self._attention[owner]

    def _embedding(self, stack: str) -> Tensors:
        return Tensors(self.bound, self._weights, f"{stack}.embedding", stack)

    def _scene(
        self, stack: str, owner: str, spec: AttentionSpec, layer: int, context: Context, memory: Tensor | None
    ) -> Scene:
        """Masks, biases and rotations of one attention branch in one layer."""
        mine = context.stacks[stack]
        keys = mine if memory is None else context.stacks[context.memory or stack]
        seen = visible(keys.valid, mine.ids.shape[1], spec.causal and memory is None, spec.window_of(layer))
        rotary = spec.rotary_of(layer)
        table = None
        if rotary is not None:
            if rotary not in mine.tables:
                places = torch.arange(mine.ids.shape[1], device=self.device).expand(mine.ids.shape)
                mine.tables[rotary] = rotary_table(rotary, places, self.dtype)
            table = mine.tables[rotary]
        return Scene(seen, self._bias(stack, owner, spec, mine), table, memory)

    def _bias(self, stack: str, owner: str, spec: AttentionSpec, mine: Stacked) -> Tensor | None:
        """What is added to the scores besides the mask, [B or 1, H, S or 1, K]."""
        if spec.alibi is None and spec.max_distance is None:
            return None
        if owner not in mine.biases:
            if spec.alibi is not None:
                mine.biases[owner] = alibi_bias(spec.alibi, spec.heads, mine.valid, self.dtype)
            else:
                table = Tensors(self.bound, self._weights, f"{stack}.layer", stack).get("relative_bias")
                length = mine.ids.shape[1]
                rows = distance_buckets(length, length, table.shape[0], spec.max_distance or 1, spec.causal)
                mine.biases[owner] = table[rows.to(table.device)].permute(2, 0, 1)[None]
        return mine.biases[owner]
