"""The block equation of a stack, as a paper would print it: `h = x + self_attention(rmsnorm(x))`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from blockaudit.manifest.fields import inherited
from blockaudit.manifest.view import View
from blockaudit.records.manifest import Bound, Branch, Norm, Residual, Scale, Stack

# The state before the first branch, between branches, and after the last.
STATES = ("x", "h", "g", "u", "v", "w")


@dataclass(frozen=True, slots=True)
class Derived:
    """The registry's derived columns: what the sites of a stack come to."""

    shortcut_crosses_norm: bool
    branch_output_normalised: bool
    stack_final_norm: bool


def equations(stack: Stack, view: View) -> dict[str, list[str]]:
    """Lines of the block equation by layer kind (`""` where layers do not differ)."""
    found = {kind: _Block(stack, view, kind).lines() for kind, layers in view.kinds(stack).items() if layers}
    if len({tuple(lines) for lines in found.values()}) == 1:
        return {"": next(iter(found.values()))}
    return found


def around(stack: Stack, view: View) -> list[str]:
    """What happens before the first layer and after the last."""
    lines: list[str] = []
    scale = factor(stack.embedding_scale, view)
    embedded = f"{scale}embedding(tokens)"
    if stack.embedding_norm is not None:
        embedded = f"{norm_name(stack.embedding_norm, view)}({embedded})"
    if scale or stack.embedding_norm is not None:
        lines.append(f"x = {embedded}")
    if final_norm(stack, view):
        assert stack.final_norm is not None
        lines.append(f"z = {norm_name(stack.final_norm, view)}(y)")
    logits, cap = f"{factor(stack.logit_scale, view)}head(z)", view.value(stack.logit_softcap)
    if cap is not None:
        logits = f"{number(cap)} * tanh({logits} / {number(cap)})"
    if logits != "head(z)":
        lines.append(f"logits = {logits}")
    return lines


def derived(stack: Stack, view: View) -> Derived:
    """The derived columns, with the manifest's defaults."""
    sites = [site for kind in view.kinds(stack) for b in view.branches(stack, kind) for site in view.norms(b, stack)]
    crosses = "norm_post" in sites or carries_norm(residual_of(stack, view), view)
    return Derived(crosses, "norm_out" in sites, final_norm(stack, view))


def final_norm(stack: Stack, view: View) -> bool:
    """Whether the stack ends in a norm."""
    return stack.final_norm is not None and view.present(stack.final_norm.when)


def residual_of(stack: Stack, view: View) -> Residual:
    """The residual equation of a stack: its own, else the manifest's."""
    return view.manifest.residual if stack.residual is UNSET else stack.residual


def branch_scale(branch: Branch, residual: Residual) -> Any:
    """The factor that a residual equation gives a branch."""
    return getattr(residual, scale_name(branch))


def scale_name(branch: Branch) -> str:
    """Which factor of a residual equation is a branch's."""
    by_name = {"self_attention": "attention_branch_scale", "cross_attention": "cross_attention_branch_scale"}
    return by_name.get(branch.name, "attention_branch_scale" if "attention" in branch.kind else "mlp_branch_scale")


def carries_norm(residual: Residual, view: View) -> bool:
    """Whether the normalised state, and not the state itself, is carried past the branches."""
    return word(residual.shortcut_source, view) == "normalised_state"


def reads(branch: Branch, view: View) -> Any:
    """What a branch reads: `state`, `memory`, or the norm of another branch."""
    return word(branch.reads, view)


def word(value: Any, view: View) -> Any:
    """A word as the manifest gives it, or what a bound one comes to."""
    return value if isinstance(value, str) else view.value(value)


def norm_name(norm: Norm, view: View) -> str:
    """The family in an equation; `norm` where nothing says which."""
    family = inherited(norm, view.manifest.norm, "family")
    family = family if isinstance(family, str) else None if family is UNSET else view.value(family)
    return family or "norm"


class _Block:
    """One block under one layer kind."""

    def __init__(self, stack: Stack, view: View, kind: str) -> None:
        self.stack, self.view = stack, view
        self.branches = view.branches(stack, kind)
        self.residual = residual_of(stack, view)
        self.carries_norm = carries_norm(self.residual, view)

    def lines(self) -> list[str]:
        if not self.branches:
            return []
        return self._parallel() if self.view.value(self.stack.parallel) is True else self._sequential()

    def _sequential(self) -> list[str]:
        lines: list[str] = []
        for position, branch in enumerate(self.branches):
            state = STATES[min(position, len(STATES) - 1)]
            last = position == len(self.branches) - 1
            after = "y" if last else STATES[min(position + 1, len(STATES) - 1)]
            lines += self._step(branch, state, after)
        return lines

    def _step(self, branch: Branch, state: str, after: str) -> list[str]:
        norms = self.view.norms(branch, self.stack)
        update, carried, before = self._update(branch, state), state, []
        if self.carries_norm and "norm_in" in norms:
            # The normalised input is carried past the branch, so that it has a name of its own.
            before = [f"n = {norm_name(norms['norm_in'], self.view)}({state})"]
            update, carried = self._update(branch, state, "n"), "n"
        if word(self.residual.update, self.view) == "interpolate_retract":
            return [*before, f"{after} = retract({carried} + {self._scale(branch) or '1 * '}({update} - {carried}))"]
        total = f"{self._shortcut(carried)} + {self._scale(branch)}{update}"
        if "norm_post" in norms:
            total = f"{norm_name(norms['norm_post'], self.view)}({total})"
        return [*before, f"{after} = {total}"]

    def _parallel(self) -> list[str]:
        read = {reads(b, self.view) for b in self.branches}
        # A norm that two branches read is computed once.
        shared = next((r for r in read if r not in ("state", "memory")), None)
        lines: list[str] = []
        if shared is not None:
            owner, _, site = shared.partition(".")
            norm = next((b.norms[site] for b in self.branches if b.name == owner and site in b.norms), None)
            lines = [f"n = {norm_name(norm, self.view) if norm is not None else 'norm'}(x)"]
        parts = [
            self._scale(b) + self._update(b, "x", "n" if shared in (reads(b, self.view), f"{b.name}.norm_in") else None)
            for b in self.branches
        ]
        return [*lines, f"y = {self._shortcut('x')} + {' + '.join(parts)}"]

    def _update(self, branch: Branch, state: str, normed: str | None = None) -> str:
        """What the branch gives: of its normalised input, and normalised itself where it has a norm_out."""
        norms = self.view.norms(branch, self.stack)
        read = normed or state
        if normed is None and "norm_in" in norms:
            read = f"{norm_name(norms['norm_in'], self.view)}({state})"
        if reads(branch, self.view) == "memory" or "memory" in branch.sources.values():
            read = f"{read}, memory"
        update = f"{branch.name}({read})"
        return f"{norm_name(norms['norm_out'], self.view)}({update})" if "norm_out" in norms else update

    def _shortcut(self, state: str) -> str:
        times = factor(self.residual.shortcut_scale, self.view)
        match word(self.residual.shortcut, self.view):
            case "gate":
                return f"{times}gate({state}) * {state}"
            case "projection":
                return f"{times}projection({state})"
            case "vector" | "scalar" if not times:
                return f"s * {state}"
            case _:
                return f"{times}{state}"

    def _scale(self, branch: Branch) -> str:
        return factor(branch_scale(branch, self.residual), self.view)


def factor(value: Any, view: View) -> str:
    """A factor in front of what it multiplies; nothing where it is fixed at 1."""
    if isinstance(value, Scale):
        word = "alpha" if value.learned else factor(value.value, view).removesuffix(" * ")
        return f"{word} * " if word else ""
    if isinstance(value, Bound) and value.config is not None and value.pinned is UNSET:
        key = value.config if isinstance(value.config, str) else value.config[0]
        return f"{key} * "
    if isinstance(value, Bound) and value.expr is not None and value.pinned is UNSET:
        return f"({value.expr}) * " if " " in value.expr else f"{value.expr} * "
    said = view.value(value)
    return "" if said is None or said == 1 else f"{number(said)} * "


def number(value: Any) -> str:
    """A number as an equation shows it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
