"""Where in a manifest's document a contract field is declared: `fields` read backwards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from blockaudit.manifest.document import Where
from blockaudit.records.manifest import Branch, Manifest

# `decoder[sliding].branch_order`: the kind of layer is no part of the place.
_KIND = re.compile(r"\[[^\]]*\]")
# Fields of a stack that the document writes in one word.
_JOINED = {"embedding": "embedding_scale"}


def wheres(field: str, manifest: Manifest) -> Iterator[Where]:
    """Places of a field in a manifest, the nearest first: its own, what it inherits, then what it is part of."""
    head, *rest = _KIND.sub("", field).split(".")
    names = [stack.name for stack in manifest.stacks]
    if head == "dims":
        yield from ((head, *rest), (head,))
    elif head == "logits" and names:
        yield ("stacks", len(names) - 1, f"logit_{'.'.join(rest)}")
    elif head in names:
        number = names.index(head)
        yield from _in_stack(("stacks", number), rest, manifest, manifest.stacks[number].branches)


def _in_stack(base: Where, rest: list[str], manifest: Manifest, branches: list[Branch]) -> Iterator[Where]:
    owner = rest[0] if rest else ""
    names = [branch.name for branch in branches]
    if owner in names:
        number = names.index(owner)
        yield from _in_branch((*base, "branches", number), rest[1:], branches[number])
    elif owner in ("final_norm", "embedding_norm"):
        yield from _norm((*base, owner), rest[1:])
    elif owner == "unplaced" and len(rest) > 1:
        yield from _norm((*base, owner, rest[1]), rest[2:])
    elif owner == "dropout":
        yield from ((owner, *rest[1:]), (owner, *rest[1:2]))
    elif owner == "residual":
        yield from ((*base, *rest), tuple(rest), (*base, *rest[:2]), tuple(rest[:2]))
    elif owner == "branch_order":
        yield (owner,)
    elif owner:
        yield (*base, _JOINED.get(owner, owner))
    yield base


def _in_branch(base: Where, rest: list[str], branch: Branch) -> Iterator[Where]:
    site = next((s for s in branch.norms if ".".join(rest).startswith(s)), None)
    roles = [spec.role for spec in branch.tensors]
    if site is not None:
        yield from _norm((*base, "norms", site), rest[site.count(".") + 1 :])
    elif rest[:1] == ["bias"] and rest[1:] and rest[1] in roles:
        number = roles.index(rest[1])
        yield from ((*base, "tensors", number, "bias"), (*base, "tensors", number))
    elif rest:
        yield (*base, *rest)
    yield base


def _norm(site: Where, name: list[str]) -> Iterator[Where]:
    """A norm's field: its own, the one of the manifest's `norm`, then the site."""
    if name:
        yield from ((*site, *name), ("norm", *name))
    yield site
