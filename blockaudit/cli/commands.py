"""Every command of this release: where it lives and what `blockaudit --help` says of it.

A table and not an import: `blockaudit inspect` must not pay for the commands that it does not run.
"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, frozen=True):
    """`target` is `module:name`, a function with typer annotations or a `typer.Typer` with commands of its own."""

    target: str
    help: str
    panel: str


COMMANDS: dict[str, Command] = {
    "inspect": Command(
        "blockaudit.cli.inspect:inspect", "Reconcile what a checkpoint stores with what its manifest declares.", "Audit"
    ),
    "conform": Command(
        "blockaudit.cli.conform:conform",
        "Run a candidate beside the manifest, executed, and compare every site.",
        "Audit",
    ),
    "trace": Command("blockaudit.cli.trace:app", "Record, compare and show traces as files.", "Audit"),
    "manifest": Command("blockaudit.cli.manifest:app", "List, show, check, compare and draft manifests.", "Describe"),
    "map": Command("blockaudit.cli.map:app", "List, show and check migration maps.", "Migrate"),
    "convert": Command(
        "blockaudit.cli.convert:convert", "Convert a checkpoint by a map: whole, with proof, or not at all.", "Migrate"
    ),
    "rules": Command("blockaudit.cli.rules:rules", "List every rule, one line each.", "Describe"),
    "explain": Command("blockaudit.cli.explain:explain", "Explain one rule, or one field of the contract.", "Describe"),
}
