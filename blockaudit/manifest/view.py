"""A manifest as its class defaults would have it: which branches and sites a stack has, kind of layer by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET

from blockaudit.manifest import grammar
from blockaudit.manifest.values import Resolver
from blockaudit.records.bound import Resolved
from blockaudit.records.manifest import Bound, Branch, Manifest, Norm, Stack

# Layers looked at to see which kinds there are: a pattern repeats long before.
LOOKED_AT = 512


class View:
    """A manifest under a config; without one, under the defaults that it gives itself."""

    def __init__(self, manifest: Manifest, config: Mapping[str, Any] | None = None) -> None:
        self.manifest = manifest
        self._resolver = Resolver(manifest.dims, {} if config is None else config, pins=True)

    def value(self, value: Any) -> Any:
        """What a value comes to, or None where nothing says."""
        return self.resolved(value).value

    def resolved(self, value: Any) -> Resolved:
        return self._resolver.value(Bound(expr=value) if isinstance(value, str) else value)

    def layers(self, stack: Stack) -> range:
        """Numbers of the layers, at most LOOKED_AT of them; one layer where nothing says how many."""
        count, first = self.resolved(stack.layers).value, self.resolved(stack.first_layer).value
        first = first if _is_count(first) else 0
        return range(first, first + (min(count, LOOKED_AT) if _is_count(count) else 1))

    def kinds(self, stack: Stack) -> dict[str, tuple[int, ...]]:
        """Layer kinds and the layers of each; one kind without a name where layers do not differ."""
        layers = tuple(self.layers(stack))
        if not stack.layer_kinds:
            return {"": layers}
        return {
            kind: tuple(n for n, said in self._resolver.by_layer(text, layers).items() if said.value)
            for kind, text in stack.layer_kinds.items()
        }

    def branches(self, stack: Stack, kind: str = "") -> list[Branch]:
        """The branches that layers of this kind have, in order."""
        layers = self.kinds(stack).get(kind, ())
        return [
            b for b in stack.branches if (not b.layer_kinds or kind in b.layer_kinds) and self.present(b.when, layers)
        ]

    def norms(self, branch: Branch, stack: Stack) -> dict[str, Norm]:
        """The norm sites of a branch that exist."""
        layers = tuple(self.layers(stack))
        return {site: norm for site, norm in branch.norms.items() if self.present(norm.when, layers)}

    def present(self, when: Any, layers: tuple[int, ...] = (0,)) -> bool:
        """Whether a `when` clause holds, for some layer where it speaks of layers."""
        if when is None or when is UNSET:
            return True
        if isinstance(when, str) and "l" in grammar.symbols(when):
            return any(said.value for said in self._resolver.by_layer(when, layers).values())
        return bool(self._resolver.condition(when).value)


def owner_of(branch: Branch, stack: Stack) -> str:
    """The contract's name of a branch; one that another kind of layer has too, in its own way, says whose it is."""
    twins = sum(b.name == branch.name for b in stack.branches) > 1 and branch.layer_kinds
    return f"{stack.name}.{branch.name}" + (f"[{'|'.join(branch.layer_kinds)}]" if twins else "")


def sites(manifest: Manifest) -> Iterator[tuple[str, str, Norm]]:
    """Every norm of a manifest: its contract name, its site and itself."""
    for stack in manifest.stacks:
        for branch in stack.branches:
            for site, norm in branch.norms.items():
                yield f"{stack.name}.{branch.name}.{site}", site, norm
        if stack.embedding_norm is not None:
            yield f"{stack.name}.embed_norm", "embed_norm", stack.embedding_norm
        if stack.final_norm is not None:
            yield f"{stack.name}.final_norm", "final_norm", stack.final_norm
        for name, norm in stack.unplaced.items():
            yield f"{stack.name}.unplaced.{name}", "unplaced", norm


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
