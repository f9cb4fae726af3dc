"""The executed witness: what the class that config.json names, or a user's own module, runs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from blockaudit.errors import RequestError
from blockaudit.reconcile.assemble import Execute
from blockaudit.records.bound import BoundManifest
from blockaudit.records.contract import Executed


def can_execute() -> bool:
    """Whether torch and transformers are installed."""
    return all(find_spec(name) is not None for name in ("torch", "transformers"))


def needs_torch() -> None:
    """Raises RequestError where torch or transformers is not installed."""
    if not can_execute():
        raise RequestError("running a model needs torch and transformers: pip install 'blockaudit[torch]'")


def executor(config: dict[str, Any], source: str, candidate: str | None = None, code: str | None = None) -> Execute:
    """What runs for this config: a user's own module where there is one, else the class that config.json names.

    code: the folder whose own modelling code may be run. Raises RequestError where torch and transformers are not
    installed.
    """
    needs_torch()
    if candidate is None:
        return lambda bound: _testified(bound, config, code)
    from blockaudit.graph.candidate import recordings
    from blockaudit.graph.witness import testify_candidate

    low, exact, training = recordings(candidate, source)
    return lambda bound: testify_candidate(bound, low, exact, training)


def unmanifested(
    config: dict[str, Any] | None, source: str, candidate: str | None = None, code: str | None = None
) -> Executed | None:
    """What is executed where no manifest speaks of it; None where there is no class to run either."""
    needs_torch()
    if candidate is None:
        return _testified(None, config, code) if config is not None else None
    from blockaudit.graph.candidate import recordings
    from blockaudit.graph.witness import testify_alone

    return testify_alone(*recordings(candidate, source))


def _testified(bound: BoundManifest | None, config: dict[str, Any], code: str | None) -> Executed:
    """What the class that config names executes, held against a manifest or for itself."""
    from blockaudit.graph.cache import remembered

    def run() -> Executed:
        from blockaudit.graph.witness import testify, testify_class

        return testify_class(config, code) if bound is None else testify(bound, config, code)

    # A checkpoint's own code is anybody's: only what the installed library runs is remembered.
    return remembered(bound, config, run) if code is None else run()
