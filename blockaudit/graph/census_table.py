"""The census as Markdown: how many, why not, and a row for each entry. Nothing in it depends on when it was run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
_TASKS = {"causal": "Causal language models", "masked": "Masked language models", "seq2seq": "Encoder-decoder models"}
_HEAD = ("type", "class", "stacks", "equation", "norms: epsilon (config key)", "oddities", "verdict")
_VERDICTS = {
    "confirmed": "every stack rebuilt from the equation shown gives the model's logits",
    "not read": "the reader gives no equation, and says why",
    "contradicted": "the rebuild does not give what the model gives: the equation is not shown",
    "not run": "no tiny model of it was built and run",
}
_ABOUT = """\
`h` is the state of a stack, `f(h)` a branch of a layer, `(x3)` a line that comes three times, `ln` LayerNorm, `rms` \
RMSNorm. A tiny model of each class is built from its own config class, with every weight random and every epsilon \
of the config set to an odd value of its own. *Confirmed* means: the stack is built again in FP64 from the equation \
shown, with norms and adds written here and the branches as opaque functions of the state that the equation says they \
read; it gives every state on the way, and on fresh tokens the logits of the model to FP32 round-off. The names of the \
branches (`attn`, `mlp`) are labels that no rebuild can test. Epsilons are the defaults of the config class; \
*in the code* means that no key of the config moves it."""


def table(rows: list[Row], version: str) -> str:
    """The whole page."""
    counts = Counter(r["verdict"] for r in rows)
    ran = len(rows) - counts["not run"]
    lines = [
        "# Census of the text models of transformers",
        "",
        f"Written by `make census` with transformers {version}; do not edit.",
        "",
        f"{len(rows)} entries are listed, {ran} ran, {counts['confirmed']} are confirmed.",
        "",
        "| verdict | entries | meaning |",
        "| --- | ---: | --- |",
        *(f"| {v} | {counts[v]} | {meaning} |" for v, meaning in _VERDICTS.items()),
        "",
        _ABOUT,
        *_why(rows),
    ]
    for task, title in _TASKS.items():
        mine = [r for r in rows if r["task"] == task]
        if mine:
            lines += ["", f"## {title}", "", f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
            lines += [_line(r) for r in mine]
    return "\n".join(lines) + "\n"


def _why(rows: list[Row]) -> Iterable[str]:
    """Reasons of what is not confirmed, the commonest first, each with its entries."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["verdict"] != "confirmed":
            groups.setdefault((row["verdict"], _kind(row["reason"])), []).append(f"{row['type']} ({row['task']})")
    if not groups:
        return
    yield from ("", "## Why not", "", "| verdict | reason | entries |", "| --- | --- | --- |")
    order = list(_VERDICTS)
    for (verdict, reason), names in sorted(groups.items(), key=lambda g: (order.index(g[0][0]), -len(g[1]), g[0])):
        yield f"| {verdict} | {_cell(reason)} | {len(names)}: {', '.join(names)} |"


def _kind(reason: str) -> str:
    """A reason without what is particular to one entry: the place in the stack, operator names, numbers."""
    first = reason.split("; ")[0]
    first = re.sub(r"^(decoder|encoder)( at add \d+)?: ", "", first)
    first = re.sub(r"\b([a-z_]+?)_\d+: ", "", first)
    first = re.sub(r"^[a-z_]+: (?=replay|the state|what is)", "", first)
    first = re.sub(r"differs by [\d.e+-]+", "differs", first)
    return re.sub(r"(the norm|where) [\w.]*\.\d[\w.]*", r"\1 ...", first)


def _line(row: Row) -> str:
    good = row["verdict"] == "confirmed"
    stacks = list(dict.fromkeys(e.split(": ", 1)[0] for e in row.get("equations", [])))
    cells = [
        row["type"],
        f"`{row['class']}`",
        ", ".join(stacks),
        _by_stack(row["equations"], stacks, code=True) if good else "",
        _by_stack(row["norms"], stacks, code=False) if good else "",
        _by_stack(row.get("oddities", []), stacks, code=False) if good else "",
        "confirmed" if good else f"{row['verdict']}: {row['reason']}",
    ]
    return f"| {' | '.join(_cell(c) for c in cells)} |"


def _by_stack(lines: list[str], stacks: list[str], *, code: bool) -> str:
    """Lines of `stack: text`, the stack named once before its own; a single stack needs no name."""
    shown: list[str] = []
    last = stacks[0] if len(stacks) == 1 else ""
    for line in lines:
        stack, _, text = line.partition(": ")
        if stack not in stacks:
            stack, text = last, line
        if stack != last:
            shown.append(f"*{stack}*")
            last = stack
        shown.append(f"`{text}`" if code else text)
    return "<br>".join(shown)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
