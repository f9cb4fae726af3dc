"""Templates of keys: axes, numbers that are shifted against them, dimension symbols."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockaudit.migrate import templates

SHIFTED = "sequential.{l+2}.mlp.weight"


@pytest.mark.parametrize(
    ("template", "key", "wanted"),
    [
        ("h.{l}.w", "h.3.w", (("l", 3),)),
        ("h.{l}.w", "h.03.w", None),
        ("h.{l}.w", "h.3.v", None),
        ("h.{l}.w", "h.-1.w", None),
        ("h.{l}.{*}", "h.3.a.b", (("*", "a.b"), ("l", 3))),
        ("h.{l}.e.{e}.w", "h.3.e.0.w", (("e", 0), ("l", 3))),
        ("h.{l}.and.{l}", "h.3.and.3", (("l", 3),)),
        ("h.{l}.and.{l}", "h.3.and.4", None),
        ("h.{l}.and.{l+1}", "h.3.and.4", (("l", 3),)),
        (SHIFTED, "sequential.2.mlp.weight", (("l", 0),)),
        # A number that would be layer -1 is no layer.
        (SHIFTED, "sequential.1.mlp.weight", None),
        ("a.b", "a.b", ()),
        ("a.b", "axb", None),
    ],
)
def test_binding(template: str, key: str, wanted: object) -> None:
    assert templates.bind(template, key) == wanted


@given(layer=st.integers(0, 10**6), expert=st.integers(0, 10**6), shift=st.integers(0, 999))
def test_what_is_filled_in_is_read_back(layer: int, expert: int, shift: int) -> None:
    template = f"m.{{l+{shift}}}.e_{{e}}.w"
    binding = (("e", expert), ("l", layer))
    assert templates.bind(template, templates.fill(template, binding)) == binding


def test_matches_are_by_axis() -> None:
    keys = [f"sequential.{n}.mlp.weight" for n in range(5)] + ["sequential.3.norm.weight"]
    assert templates.matches(SHIFTED, keys) == {(("l", n),): f"sequential.{n + 2}.mlp.weight" for n in range(3)}
    assert templates.axes(SHIFTED) == ("l",)


def test_dimension_symbols_become_numbers_and_axes_stay() -> None:
    dims = {"n_layers": 4, "tied": True, "name": "x"}
    assert templates.placed("sequential.{n_layers+3}.{l+2}.w", dims) == "sequential.7.{l+2}.w"
    # What is no number is no number: the checks then name it.
    assert templates.placed("{tied}.{name}.{n_heads}", dims) == "{tied}.{name}.{n_heads}"


def test_an_axis_that_nothing_fills_is_an_error() -> None:
    with pytest.raises(KeyError):
        templates.fill("h.{l}.w", (("e", 1),))
