"""The diff of a stored answer and its replay is made in a child process, and ends at its limits."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.ledger.maintenance.replay_comparison import Comparison
from proxy.limited_work import LimitExceeded, TooLarge


def comparison(stored: Any, today: Any) -> Comparison:
    answers: Any = SimpleNamespace(answer={"content": today})
    return Comparison(replayed=answers, stored_answer={"content": stored})


def test_lines_of_the_page_are_those_of_the_command() -> None:
    two = comparison(["one", "two"], ["one", "three"])

    marked = two.marked()

    assert [line for _, line in marked] == two.lines()
    assert ("del", '-    "two"') in marked
    assert ("add", '+    "three"') in marked
    assert replace(two, stored_answer={"content": ["one", "three"]}).marked() == []


def test_a_diff_that_needs_a_minute_is_ended() -> None:
    """Each second line differs, so that difflib begins anew after each line."""

    def lines(word: str) -> list[str]:
        return [text for number in range(8_000) for text in (f"{number}", f"{word} {number}")]

    with pytest.raises(LimitExceeded):
        comparison(lines("stored"), lines("today")).marked()


def test_answers_that_are_too_large_are_not_compared() -> None:
    with pytest.raises(TooLarge):
        comparison(["x" * 600_000], ["y" * 600_000]).marked()
