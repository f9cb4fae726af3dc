"""Waivers, from the tables of a config file or a policy to records. What is wrong with one is a RequestError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import Any, cast

import msgspec

from blockaudit.errors import RequestError
from blockaudit.records.report import Place
from blockaudit.records.suppression import Scope, Waiver
from blockaudit.rules import registry
from blockaudit.suppress.words import no_such_key

KEYS = ("rule", "scope", "reason", "owner", "expires")
SCOPES = tuple(Scope.__struct_fields__)
# Where a key of the waiver with this number (from 0) is written; the key is empty for the waiver itself.
Locate = Callable[[int, str], Place]


def waivers(tables: Sequence[Mapping[str, Any]], locate: Locate) -> tuple[Waiver, ...]:
    """Every waiver of a list of tables, in order. Raises RequestError for the first that is none."""
    return tuple(_Reader(number, table, locate).waiver() for number, table in enumerate(tables))


def said(place: Place) -> str:
    """`blockaudit.toml:12`."""
    return f"{place.path}:{place.line}" if place.line else place.path


class _Reader(msgspec.Struct, frozen=True):
    """One table on its way to a waiver."""

    number: int
    table: Mapping[str, Any]
    locate: Locate

    def waiver(self) -> Waiver:
        for key in self.table:
            if key not in KEYS:
                raise self.wrong(key, no_such_key(key, KEYS))
        for key in KEYS:
            if key not in self.table:
                raise self.wrong("", f"no {key}: a waiver has {_list(KEYS)}")
        return Waiver(
            rule=self.rule(),
            scope=self.scope(),
            reason=self.text("reason"),
            owner=self.text("owner"),
            expires=self.expires(),
            place=self.locate(self.number, ""),
        )

    def wrong(self, key: str, what: str) -> RequestError:
        return RequestError(f"{said(self.locate(self.number, key))}: waiver {self.number + 1}: {what}")

    def text(self, key: str) -> str:
        value = self.table[key]
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, f"{key}: expected a text that says something, found {value!r}")
        return value.strip()

    def rule(self) -> str:
        item = self.text("rule")
        named = [entry.rule for entry in registry.entries() if registry.names(item, entry.rule.code, entry.rule.name)]
        if not named:
            raise self.wrong("rule", f"rule: {item!r} names no rule: give a code (N201), a prefix (N2) or a name")
        if not any(rule.waivable for rule in named):
            raise self.wrong(
                "rule", f"rule: {named[0].code} {named[0].name} cannot be waived: see `blockaudit explain`"
            )
        return item

    def scope(self) -> Scope:
        value = self.table["scope"]
        if isinstance(value, str) and value.strip():
            return Scope(subject=value.strip())
        if not isinstance(value, Mapping) or not value:
            raise self.wrong("scope", f"scope: expected a pattern of subjects, or a table of {_list(SCOPES)}")
        for key, pattern in cast("Mapping[str, Any]", value).items():
            if key not in SCOPES:
                raise self.wrong("scope", f"scope: {no_such_key(key, SCOPES)}")
            if not isinstance(pattern, str) or not pattern.strip():
                raise self.wrong("scope", f"scope: {key}: expected a pattern, found {pattern!r}")
        return msgspec.convert(value, Scope)

    def expires(self) -> str:
        value = self.table["expires"]
        if isinstance(value, str):
            with suppress(ValueError):  # told below, with what was found
                value = date.fromisoformat(value)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.wrong("expires", f"expires: expected a date (2026-12-31), found {str(value)!r}")
        return value.isoformat()


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
