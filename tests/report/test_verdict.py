from __future__ import annotations

from blockaudit.report import verdict
from blockaudit.rules import registry


def test_every_rule_that_leaves_an_audit_unverified_is_given_as_the_reason() -> None:
    # A report is rendered without the rules: what they say of themselves is held here to what it says of them.
    named = verdict._UNVERIFYING  # pyright: ignore[reportPrivateUsage]
    assert set(named) == {entry.rule.name for entry in registry.entries() if entry.rule.unverified}
