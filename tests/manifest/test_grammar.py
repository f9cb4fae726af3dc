from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blockaudit.manifest import grammar

ENV: dict[str, Any] = {"d": 64, "h": 4, "f": 0.5, "on": True, "off": False, "none": None, "word": "x", "ns": [1, 2, 3]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("d // h", 16), ("3 * d", 192), ("(h + 2 * h) * d", 768), ("d ** -0.5", 0.125), ("sqrt(d)", 8.0),
        ("ceil(d * f / 3)", 11), ("min(d, h)", 4), ("max(d, h)", 64), ("len(ns)", 3), ("ns[0]", 1), ("-d", -64),
        ("not on", False), ("on and off", False), ("on or off", True), ("h in ns", False), ("h not in [4]", False),
        ("none is None", True), ("none is not None", False), ("1 < h <= 4", True), ("d if on else h", 64),
        ("word == 'x'", True), ("d % 3 == 1", True), (" d ", 64),
    ],
)  # fmt: skip
def test_values(text: str, value: Any) -> None:
    assert grammar.evaluate(text, ENV) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "d +", "d; h", "import os", "__import__('os')", "open('x')", "d.real", "(lambda: 1)()", "[x for x in ns]",
        "f'{d}'", "d := 1", "{'a': 1}", "{1}", "*ns", "print(d)", "min(*ns)", "min(d, key=h)", "...", "await d",
        "d" * 500, "9 ** 99", "10 ** 40 ** 2", "'a' * 10", "ns * 10", "d / 0", "d % 0", "ns[9]", "ns['a']", "len(d)",
        "none + 1", "sqrt(-1)", "-word", "d[0]", "word < 1", "2 ** 63 * 2", "~d", "d << 40", "(-1) ** 0.5", "1j",
        "b'a'",
        "sqrt()", "min()", "h in d", "ns[0:1]", "max(1, 'a')", "(" * 200 + ")" * 200,
    ],
)  # fmt: skip
def test_what_is_no_expression_or_has_no_value_is_refused(text: str) -> None:
    with pytest.raises(grammar.ExpressionError):
        grammar.evaluate(text, ENV)


def test_an_unknown_symbol_is_unknown_and_not_wrong() -> None:
    with pytest.raises(grammar.UnknownSymbol):
        grammar.evaluate("d + width", ENV)
    assert set(grammar.symbols("d + sqrt(width) if on else d")) == {"d", "width", "on"}


ATOMS = st.sampled_from([*ENV, "x", "0", "1", "2", "1e300", "9999999999", "'a'", "[]", "ns", "None", "True"])
OPERATORS = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "**", "==", "<", "in", "and", "or", "is", ".", "if", "else", ",", "<<", ":="]
)
WORDS = st.lists(
    ATOMS | OPERATORS | st.sampled_from(["(", ")", "[", "]", "sqrt(", "len(", "min(", "not", "-"]), max_size=12
)


def _said(ask: Callable[[], Any]) -> tuple[str, str]:
    """A value, or why there is none; by its repr, for 1, 1.0 and True are three answers."""
    try:
        return "value", repr(ask())
    except grammar.ExpressionError as error:
        return type(error).__name__, ""


@settings(deadline=None)
@given(WORDS.map(" ".join), st.sampled_from([*ENV, "x"]), st.sampled_from([0, 2, 0.5, "x", True, None, [], [1, 2, 3]]))
@example("d in ns", "d", 2.0)
@example("d not in ns and d / (h - 4)", "d", 3)
@example("off and d % word", "d", 3)
@example("on or d % word", "d", 3)
@example("min(d, h) + d", "d", 3)
def test_a_function_of_one_symbol_gives_what_the_expression_gives(text: str, symbol: str, value: Any) -> None:
    function = _said(lambda: grammar.function_of(symbol, text, ENV)(value))
    assert function == _said(lambda: grammar.evaluate(text, {**ENV, symbol: value}))


def test_members_of_a_list_are_equal_to_what_is_asked_for() -> None:
    listed = [1, [2], {"a": 3}, "b"]
    isin = grammar.function_of("x", "x in listed", {"listed": listed})
    assert [isin(x) for x in (1, 1.0, True, 2, [2], [3], {"a": 3}, "b", None)] == [
        x in listed for x in (1, 1.0, True, 2, [2], [3], {"a": 3}, "b", None)
    ]


@settings(deadline=None)
@given(st.text(max_size=60) | WORDS.map(" ".join))
def test_any_text_has_a_value_or_an_expression_error(text: str) -> None:
    began = time.perf_counter()
    try:
        value = grammar.evaluate(text, ENV)
    except grammar.ExpressionError:
        pass
    else:
        assert isinstance(value, int | float | str | list | type(None))
    assert time.perf_counter() - began < 1
