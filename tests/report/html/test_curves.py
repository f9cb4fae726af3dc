from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blockaudit.report.html.curves import Point, axis_of, chart
from blockaudit.report.html.scale import Scale, fitted

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30)


@pytest.mark.parametrize(
    ("numbers", "low", "high", "log"),
    [
        ([0.4, 0.8], 0.0, 0.8, False),
        ([0.0], 0.0, 1.0, False),
        ([], 0.0, 1.0, False),
        ([-0.2, 0.31], -0.2, 0.4, False),
        ([0.0098, 0.55], 0.005, 1.0, True),
        ([math.nan, math.inf, 2.0], 0.0, 2.0, False),
    ],
)
def test_an_axis_holds_its_numbers_between_round_ones(numbers: list[float], low: float, high: float, log: bool) -> None:
    found = fitted(numbers)
    assert (found.low, found.high, found.log) == (pytest.approx(low), pytest.approx(high), log)


def test_a_signed_axis_has_room_on_both_sides_of_zero() -> None:
    found = fitted([0.1, 0.4], signed=True)
    assert found.low < 0 < found.high


@given(st.lists(finite, min_size=1), st.booleans())
@example([5e-324], False)
@example([1.0, 5e-324], False)
@example([-5e-324, 1e-310], True)
def test_every_number_stands_on_its_axis(numbers: list[float], signed: bool) -> None:
    axis = fitted(numbers, signed=signed)
    assert all(0 <= axis.at(n) <= 1 for n in numbers)
    assert 1 <= len(axis.ticks()) <= 14
    assert all(axis.low - 1e-9 * abs(axis.low) <= t <= axis.high + 1e-9 * abs(axis.high) for t in axis.ticks())


def test_powers_of_ten_are_counted_where_numbers_span_many() -> None:
    assert Scale(1e-8, 1.0, log=True).ticks() == pytest.approx([1e-8, 1e-6, 1e-4, 1e-2, 1.0])


def test_a_line_is_broken_where_there_is_no_number() -> None:
    points = [Point(n, v) for n, v in enumerate([0.5, 0.5, math.nan, 0.5])]
    drawn = chart("x", points, Scale(0.0, 1.0))
    assert drawn.line.count("M") == 2
    assert drawn.band == ""
    assert [c.y is None for c in drawn.columns] == [False, False, True, False]


def test_a_band_has_an_upper_and_a_lower_edge() -> None:
    drawn = chart("x", [Point(0, 0.5, 0.25, 0.75), Point(1, 0.5, 0.25, 0.75)], Scale(0.0, 1.0))
    assert drawn.band == "M46 55.5L408 55.5L408 118.5L46 118.5Z"
    assert drawn.says == "0.5 in layer 0, 0.5 in layer 1; least 0.5 in layer 0, most 0.5 in layer 0"


def test_of_a_very_deep_stack_every_so_many_layers_answer_the_pointer() -> None:
    points = [Point(n, n / 2000) for n in range(2000)]
    drawn = chart("x", points, axis_of(points))
    assert len(drawn.columns) <= 256
    assert len(drawn.across) < 12
