"""Charts: round axis marks, stacked bars, and lines with gaps."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admin.dashboard.charts import (
    LEFT,
    NARROW,
    PLOT_HEIGHT,
    TOP,
    Series,
    axis_marks,
    draw_lines,
    stack_bars,
    time_ticks,
)


def series(slug, *values):
    titles = [f"{slug} {n}" for n in range(len(values))]
    return Series(slug, slug, values, titles, [f"?{slug}={n}" for n in range(len(values))])


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_axis_marks_start_at_zero_and_reach_the_maximum(most):
    marks = axis_marks(most)

    assert marks[0] == 0
    assert marks[-1] >= most * (1 - 1e-9)
    assert 2 <= len(marks) <= 6
    steps = [b - a for a, b in itertools.pairwise(marks)]
    assert all(math.isclose(step, steps[0], rel_tol=1e-6) for step in steps)


def test_an_empty_chart_has_marks_and_no_bars():
    bars, marks = stack_bars([series("a", 0, 0)], NARROW, str)

    assert bars == []
    assert len(marks) == 2


@given(st.lists(st.tuples(*[st.integers(0, 10**12)] * 2), min_size=1, max_size=200))
def test_bars_are_stacked_inside_the_drawing(pairs):
    first, second = zip(*pairs, strict=True)
    bars, _ = stack_bars([series("a", *first), series("b", *second)], NARROW, str)

    assert len(bars) == sum(value > 0 for pair in pairs for value in pair)
    for bar in bars:
        assert bar.x >= LEFT - 0.01
        assert bar.x + bar.width <= NARROW + 0.01
        assert bar.y >= TOP - 0.02
        assert bar.y + bar.height <= TOP + PLOT_HEIGHT + 0.02
    for lower, upper in itertools.pairwise(bars):
        if lower.x == upper.x:
            assert math.isclose(upper.y + upper.height, lower.y, abs_tol=0.02)


def test_a_missing_value_splits_the_line():
    lines, dots, _ = draw_lines([series("p50", 1, 2, None, 3, None, 4, 5)], NARROW, str)

    assert [len(line.points.split()) for line in lines] == [2, 2]
    assert [dot.title for dot in dots] == ["p50 0", "p50 1", "p50 3", "p50 5", "p50 6"]


@pytest.mark.parametrize("count", [1, 7, 30, 168, 400])
def test_time_labels_do_not_overlap(count):
    ticks = time_ticks([str(n) for n in range(count)], NARROW)

    assert ticks
    gaps = [b.at - a.at for a, b in itertools.pairwise(ticks)]
    assert all(gap >= 40 for gap in gaps)


def test_hours_of_a_day_share_one_centered_label():
    """Starting at 22:00, the two hours of the first day must not hide the label of the second."""
    days = [f"{day} Nov" for day in range(15, 23)]
    hours = [2, 24, 24, 24, 24, 24, 24, 22]
    labels = [day for day, count in zip(days, hours, strict=True) for _ in range(count)]

    ticks = time_ticks(labels, NARROW)

    hour = (NARROW - LEFT) / len(labels)
    assert [tick.label for tick in ticks] == days[1:]
    assert [round((tick.at - LEFT) / hour) for tick in ticks] == [14, 38, 62, 86, 110, 134, 157]
