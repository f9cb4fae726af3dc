"""Names of trace sites and their order: `decoder.layers.3.mlp.norm_in` and its parts (contract section 5)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from blockaudit.records.conformance import BRANCH_SITES

BRANCHES = ("self_attention", "cross_attention", "mlp")
STACKS = ("encoder", "decoder")
_BEFORE, _AFTER = ("embed", "embed_norm"), ("final_norm", "logits")
_NAME = re.compile(
    r"(?:(?P<stack>encoder|decoder)\.)?"
    r"(?:layers\.(?P<layer>0|[1-9][0-9]{0,5})\.(?:(?P<branch>[A-Za-z_][A-Za-z0-9_]*)\.)?)?"
    r"(?P<site>[a-z_]+)"
)
# An order that sorts as the sites are executed: stack, part of the stack, layer, branch, site.
Order = tuple[int, int, int, int, str, int]


class Site(msgspec.Struct, frozen=True):
    """One site. `stack` is empty where a model has one stack, `branch` where the site is the whole layer's."""

    site: str
    stack: str = ""
    layer: int | None = None
    branch: str = ""

    @property
    def name(self) -> str:
        layer = "" if self.layer is None else f"layers.{self.layer}"
        return ".".join(part for part in (self.stack, layer, self.branch, self.site) if part)

    def order(self, branches: Sequence[str] = BRANCHES) -> Order:
        """Where the site stands among others; branches that `branches` does not name follow those that it does."""
        part = 0 if self.site in _BEFORE else 1 if self.layer is not None else 2
        # What both stacks share has no prefix: a common embedding comes first, the logits last.
        stack = STACKS.index(self.stack) + 1 if self.stack else (0 if part == 0 else len(STACKS) + 1)
        branch = len(branches) + 1  # the layer's own state, after every branch
        if self.branch:
            branch = branches.index(self.branch) if self.branch in branches else len(branches)
        within = BRANCH_SITES if part == 1 else (*_BEFORE, *_AFTER)
        return stack, part, self.layer or 0, branch, self.branch, within.index(self.site)


def parse(name: str) -> Site | None:
    """The site of that name, or None where it is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    stack, layer, branch, site = found.group("stack", "layer", "branch", "site")
    allowed = (*_BEFORE, *_AFTER) if layer is None else BRANCH_SITES if branch else ("state",)
    if site not in allowed:
        return None
    return Site(site, stack or "", None if layer is None else int(layer), branch or "")


def order(name: str, branches: Sequence[str] = BRANCHES) -> Order:
    """The sort key of a site by name. Raises ValueError for a name that is none."""
    site = parse(name)
    if site is None:
        raise ValueError(f"{name!r} is no trace site")
    return site.order(branches)


def ordered(names: Iterable[str], branches: Sequence[str] = BRANCHES) -> list[str]:
    """Site names in the order in which they are executed."""
    return sorted(names, key=lambda name: order(name, branches))
