"""Bind a manifest to one config.json: fields of the contract resolved, key templates with axes and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import UNSET
from msgspec.structs import replace

from blockaudit.manifest import grammar
from blockaudit.manifest.fields import branch_fields, norm_fields, norm_key, stack_fields
from blockaudit.manifest.functions import branch_functions, head_functions, stack_functions
from blockaudit.manifest.values import Layered, Resolver
from blockaudit.manifest.view import owner_of
from blockaudit.records.bound import BoundManifest, ExpectedTensor, Resolved, StackSpan
from blockaudit.records.checkpoint import Fault
from blockaudit.records.manifest import Bound, Branch, ClassSpec, Manifest, Norm, Stack, TensorSpec

# More layers or experts than this is not a model: such a config value is reported, never expanded.
MAX_AXIS = 65_536
_SYMBOL = re.compile(r"\{(\w+)\}")


def bind(
    manifest: Manifest,
    config: Mapping[str, Any] | None,
    *,
    pins: bool = True,
    observed: Mapping[str, int] | None = None,
    class_name: str | None = None,
    layered: Layered | None = None,
) -> BoundManifest:
    """The manifest under this config. With `pins`, what it declares; without, what config.json says now.

    `observed` gives dimensions read off tensor headers, for a checkpoint that has no config.json. `class_name` is the
    model class where config.json does not name one. `layered` is one dictionary for several classes of the same
    manifest under the same config: what holds in which layer is then worked out once.
    """
    resolver = Resolver(manifest.dims, config, pins=pins, observed=observed, layered=layered)
    return _Binder(manifest, resolver, config_classes(config) or ([class_name] if class_name else [])).bound()


class _Binder:
    def __init__(self, manifest: Manifest, resolver: Resolver, names: list[str]) -> None:
        self.manifest = manifest
        self.resolver = resolver
        self.fields: dict[str, Resolved] = {}
        self.functions: dict[str, Resolved] = {}
        self.expected: list[ExpectedTensor] = []
        self.spans: list[StackSpan] = []
        self.class_name, self.spec = _class_of(manifest, names)

    def bound(self) -> BoundManifest:
        for stack in self.manifest.stacks:
            if self.spec.stacks is UNSET or stack.name in self.spec.stacks:
                self._stack(stack)
        parts = self.manifest.parts
        mine = [n for n in parts if n in self.spec.parts]
        for name in mine:
            for tensor in parts[name]:
                self.expected.extend(self._tensor(tensor, f"parts.{name}", "part"))
        heads = {t.role for n in (mine if self.class_name is not None else parts) for t in parts[n]}
        if parts and not any(role.startswith("lm_head") for role in heads):
            # A class without a head has no logits to scale, and a family without one (CLIP's text model) no such class.
            self.fields = {f: v for f, v in self.fields.items() if not f.startswith("logits.")}
        self.expected.extend(
            t for b in self.manifest.buffers for t in self._tensor(b, "buffers", "buffer", derived=True)
        )
        foreign = tuple(
            t for n in parts if n not in mine for tensor in parts[n] for t in self._tensor(tensor, f"parts.{n}", "part")
        )
        self.fields |= {
            f"tie.{t.template}": replace(t.tied, value=bool(t.tied.value)) for t in self.expected if t.tied is not None
        }
        self.functions |= head_functions(self.manifest, self.resolver)
        return BoundManifest(
            manifest=self.manifest,
            class_name=self.class_name,
            base_prefix=self._prefix,
            dims={name: self._dim(name) for name in self.manifest.dims},
            fields=self.fields,
            spans=tuple(self.spans),
            expected=tuple(self.expected),
            foreign=foreign,
            problems=tuple(self.resolver.problems),
            consumed=frozenset(self.resolver.consumed),
            functions=self.functions,
        )

    def _dim(self, name: str) -> Resolved:
        try:
            return self.resolver.dim(name)
        except grammar.ExpressionError:
            return Resolved(None, known=False)

    # -- stacks, branches, norms ------------------------------------------------------------------------------------

    def _stack(self, stack: Stack) -> None:
        run = self._count(stack.layers)
        stored = run if stack.stored_layers is None else self._count(stack.stored_layers)
        first = self._count(stack.first_layer) or 0
        source = self.resolver.value(stack.layers).evidence
        layers = tuple(range(first, first + (stored or 0)))
        kinds = self._layer_kinds(stack, layers)
        self.spans.append(StackSpan(stack.name, first, run, stored, source, stack.ignored, tuple(kinds.items())))
        where: dict[str, Any] = {"stack": stack.name, "ignored": stack.ignored}
        if not stack.ignored:
            active = [b for b in stack.branches if self._when(b.when, layers or (0,))[1] is not False]
            self.fields |= stack_fields(stack, active, self.manifest, self.resolver, kinds)
            self.functions |= stack_functions(stack, self.resolver)
        for tensor in stack.embedding:
            self.expected.extend(self._tensor(tensor, f"{stack.name}.embedding", "embedding", **where))
        for tensor in stack.tensors:
            self.expected.extend(self._tensor(tensor, f"{stack.name}.layer", "branch", layers=layers, **where))
        for branch in stack.branches:
            self._branch(stack, branch, layers, kinds, where)
        for site, norm in (("embed_norm", stack.embedding_norm), ("final_norm", stack.final_norm)):
            # A stack with norms that nothing has placed may end in one of them, and one of which only keys are known
            # may as well: absence is no claim there.
            if norm is None and (stack.unplaced or not stack.branches):
                continue
            self._norm(f"{stack.name}.{site}", site, norm, (), where)
        for name, norm in stack.unplaced.items():
            self._norm(f"{stack.name}.unplaced.{name}", "unplaced", norm, layers, where)

    def _branch(
        self, stack: Stack, branch: Branch, layers: tuple[int, ...], kinds: dict[str, tuple[int, ...]], where: Any
    ) -> None:
        mine = layers if not branch.layer_kinds else tuple(sorted(n for k in branch.layer_kinds for n in kinds[k]))
        mine, present = self._when(branch.when, mine)
        if present is False:
            return
        if branch.layer_kinds and sum(len(n) for n in kinds.values()) > len(layers):
            present = None  # config.json would tell which layers are of which kind
        if branch.layer_kinds and layers and not mine:
            return  # no layer of this config is of these kinds
        owner = owner_of(branch, stack)
        if not where["ignored"]:
            self.fields |= branch_fields(owner, branch, self.resolver)
            self.functions |= branch_functions(owner, branch, mine, self.resolver)
        for site, norm in branch.norms.items():
            self._norm(f"{owner}.{site}", site, norm, mine, where, sure=present is True)
        for tensor in branch.tensors:
            self.expected.extend(self._tensor(tensor, owner, "branch", layers=mine, sure=present is True, **where))
            if not where["ignored"] and self._when(tensor.when, mine)[1] and tensor.module is not None:
                self.fields[f"{owner}.bias.{tensor.role}"] = self.resolver.value(tensor.bias)

    def _norm(
        self, owner: str, site: str, norm: Norm | None, layers: tuple[int, ...], where: Any, sure: bool = True
    ) -> None:
        """One norm site: its fields, and its weight, bias and running state where it owns any."""
        when = Resolved(norm is not None)
        if norm is not None and norm.when is not UNSET and norm.when is not None:
            layers, _ = self._when(norm.when, layers)
            when = self.resolver.condition(norm.when, l=layers[0] if layers else 0)
        present = replace(when, value=bool(when.value))
        if (
            not where["ignored"]
            and (site == "final_norm" or norm is not None)
            and f"{owner}.present" not in self.fields
        ):
            self.fields[f"{owner}.present"] = present
        if norm is None or (present.known and not present.value):
            return
        sure = sure and present.known
        values = norm_fields(site, norm, self.manifest.norm, self.resolver)
        if not where["ignored"]:
            self.fields |= {f"{owner}.{name}": value for name, value in values.items()}
        if norm.module is UNSET or norm.module is None or values["scale"].value == "none":
            return
        shape = norm.shape if norm.shape is not UNSET else ["d_model"]
        core = self.manifest.norm
        owned = [TensorSpec(role="weight", key=norm_key(norm, core, "weight"), shape=shape)]
        if values["bias"].value or not values["bias"].known:
            optional = not values["bias"].known
            owned.append(TensorSpec(role="bias", key=norm_key(norm, core, "bias"), shape=shape, optional=optional))
        for state in norm.persistent_state or []:
            # Counters are scalars; every other running statistic has the norm's own shape.
            of = [] if state.startswith("num_") else shape
            owned.append(TensorSpec(role=state, key=norm_key(norm, core, state), shape=of))
        for spec in owned:
            self.expected.extend(self._tensor(spec, owner, "norm", layers=layers, sure=sure, **where))

    # -- tensors ----------------------------------------------------------------------------------------------------

    def _tensor(
        self,
        spec: TensorSpec,
        owner: str,
        what: str,
        *,
        layers: tuple[int, ...] = (),
        stack: str | None = None,
        ignored: bool = False,
        derived: bool = False,
        sure: bool = True,
    ) -> Iterator[ExpectedTensor]:
        if stack is None and "{l}" in (spec.module or spec.key or ""):
            span = next((s for s in self.spans if not s.ignored), None)
            layers = tuple(range(span.first, span.first + (span.stored or 0))) if span else ()
        layers, present = self._when(spec.when, layers)
        if present is False:
            return
        # What an unreadable config would switch on or off may be there or not.
        unsure = not sure or present is None
        tied = self.resolver.value(spec.tie) if spec.tied_to is not None else None
        base = ExpectedTensor(
            template=self._prefixed(self._numbered(spec.key or f"{spec.module}.weight"), what),
            shape=tuple(self._axis(s) for s in spec.shape or ()),
            symbols=tuple(spec.shape or ()),
            owner=owner,
            role=spec.role,
            what=what,
            stack=stack,
            layers=layers,
            counts=self._counts(spec.key or spec.module or ""),
            optional=spec.optional or unsure or (tied is not None and not tied.known),
            derived=derived or spec.derived,
            tied_to=self._prefixed(self._numbered(spec.tied_to), "embedding") if spec.tied_to else None,
            tied=tied,
            layout=spec.layout,
            ignored=ignored,
            unsized=spec.shape is None,
        )
        yield base
        bias = self.resolver.value(spec.bias)
        if spec.module is not None and (bias.value or not bias.known):
            out = 0 if spec.layout == "out_in" else len(spec.shape or ()) - 1
            yield replace(
                base,
                template=self._prefixed(self._numbered(f"{spec.module}.bias"), what),
                shape=base.shape[out : out + 1],
                symbols=base.symbols[out : out + 1],
                role=f"{spec.role}.bias" if what != "norm" else "bias",
                what="bias" if what == "branch" else what,
                optional=base.optional or not bias.known,
                tied_to=None,
                tied=None,
            )

    @property
    def _prefix(self) -> str:
        return self.manifest.match.base_prefix if self.spec.base_prefix is UNSET else self.spec.base_prefix

    def _prefixed(self, template: str, what: str) -> str:
        """The template as the class spells it. Parts stand beside the base model, unless they carry its prefix."""
        mine = self.manifest.match.base_prefix
        if not template.startswith(mine) or (not mine and what == "part"):
            return template
        return self._prefix + template[len(mine) :]

    def _numbered(self, template: str) -> str:
        """The template with every dimension symbol that is no axis as its number; one that is not known stays."""

        def number(symbol: re.Match[str]) -> str:
            name = symbol[1]
            if name == "l" or name in self.manifest.axes or name not in self.manifest.dims:
                return symbol[0]
            count = self._count(name)
            return symbol[0] if count is None else str(count)

        return _SYMBOL.sub(number, template)

    def _counts(self, template: str) -> tuple[tuple[str, int], ...]:
        axes = self.manifest.axes
        return tuple((a, self._count(Bound(expr=axes[a])) or 0) for a in axes if f"{{{a}}}" in template)

    def _count(self, value: Any) -> int | None:
        resolved = self.resolver.value(Bound(expr=value) if isinstance(value, str) else value)
        number = resolved.value
        if not resolved.known:
            return None
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_AXIS:
            self._invalid(resolved, f"a count between 0 and {MAX_AXIS}", number)
            return None
        return number

    def _axis(self, text: str) -> int | None:
        """One dimension in elements; None where config.json is needed and cannot be read."""
        resolved = self.resolver.expression(text)
        size = resolved.value
        if not resolved.known:
            return None
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            self._invalid(resolved, f"a whole number for {text}", size)
            return None
        return size

    def _invalid(self, resolved: Resolved, expected: str, observed: Any) -> None:
        where = ", ".join(resolved.keys) or "manifest"
        fault = Fault("config-invalid", "config.json", f"{where} gives {observed!r}", (), expected, observed, where)
        if fault not in self.resolver.problems:
            self.resolver.problems.append(fault)

    # -- conditions -------------------------------------------------------------------------------------------------

    def _when(self, when: str | Bound | Any | None, layers: tuple[int, ...]) -> tuple[tuple[int, ...], bool | None]:
        """The layers where `when` holds, and whether it holds anywhere; None where config.json would tell."""
        if when is None or when is UNSET:
            return layers, True
        if isinstance(when, str) and "l" in grammar.symbols(when):
            said = self.resolver.by_layer(when, layers)
            if not all(r.known for r in said.values()):
                return layers, None
            kept = tuple(n for n, r in said.items() if r.value)
            return kept, bool(kept)
        said = self.resolver.condition(when)
        return layers, bool(said.value) if said.known else None

    def _layer_kinds(self, stack: Stack, layers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        kinds: dict[str, tuple[int, ...]] = {}
        for kind, text in stack.layer_kinds.items():
            said = self.resolver.by_layer(text, layers)
            kinds[kind] = tuple(n for n, r in said.items() if r.value or not r.known)
        return kinds


def config_classes(config: Mapping[str, Any] | None) -> list[str]:
    """The model classes that config.json names."""
    named = cast("list[Any] | None", (config or {}).get("architectures"))
    return [n for n in named if isinstance(n, str)] if isinstance(named, list) else []


def classes(manifest: Manifest) -> list[str]:
    """Every class that the manifest knows, the base class last."""
    base = manifest.match.base_class
    return [*manifest.match.classes, *([base] if base and base not in manifest.match.classes else [])]


def _class_of(manifest: Manifest, names: list[str]) -> tuple[str | None, ClassSpec]:
    """The first named class that the manifest knows, else the manifest's first."""
    for name in names:
        if name == manifest.match.base_class and name not in manifest.match.classes:
            return name, ClassSpec(base_prefix="")
        if name in manifest.match.classes:
            return name, manifest.match.classes[name]
    first = next(iter(manifest.match.classes.values()), ClassSpec())
    return (names[0] if names else None), first
