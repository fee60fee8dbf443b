"""The command that runs the long versions: it runs them, and the page has a row for each."""

import shutil
import sys
from pathlib import Path
from subprocess import run as started

import pytest
from rich.progress import Progress

from benchmarks.promises import LONG, MEASURED, Long, run


def test_the_least_of_a_goal_is_run_kept_in_a_file_and_put_into_the_page(repository, tmp_path):
    page = Path(shutil.copy(repository / "docs/promises.md", tmp_path))
    before = rows_of(page)
    asked = ["--quick", "--only", "G13", "--page", page, "--output", tmp_path]

    done = started(  # noqa: S603 - ours
        [sys.executable, "-m", "benchmarks.promises", *asked],
        cwd=repository, check=True, capture_output=True, text=True,
    )  # fmt: skip

    (heard,) = tmp_path.glob("G13*.txt")
    last = heard.read_text().splitlines()[-1]
    assert last.endswith(" 0 findings")
    assert last in done.stdout
    changed = [row for row in rows_of(page) if row not in before]
    (at,) = [n for n, long in enumerate(LONG) if long.goal == "G13"]
    assert changed == [rows_of(page)[at]]
    assert "| `python -m tests.fuzz 2` | kept | " in changed[0]
    assert changed[0].endswith(f" | {last} |")


@pytest.mark.parametrize(("status", "kept"), [(0, True), (1, False)])
def test_a_promise_is_kept_when_its_command_says_so(tmp_path, status, kept):
    command = f'''A=1 python -c "import os, sys; print('│ so', os.environ['A'], '│'); sys.exit({status})"'''
    with Progress(disable=True) as progress:
        told = run(Long("G00", "nothing", command, 1, 1, 0.01), 1, tmp_path / "said", progress)

    assert (told.kept, told.says) == (kept, "so 1")


def test_sizes_are_scaled_down_to_the_least_and_words_are_one_or_the_other():
    many, word = (Long("G00", "", "x {size}", *sizes, 10) for sizes in [(1000, 7), ("all", "few")])

    assert [many.at(scale) for scale in (1, 0.1, 0)] == ["x 1000", "x 100", "x 7"]
    assert [word.at(scale) for scale in (1, 0.1, 0)] == ["x all", "x few", "x few"]
    assert many.expected_s(0.5) == 300


def test_the_page_has_a_row_for_each_in_their_order(repository):
    told = [row.split(" | ")[:2] for row in rows_of(repository / "docs/promises.md")]

    assert told == [[f"| {long.goal}", long.proves] for long in LONG]


def rows_of(page):
    found = MEASURED.search(page.read_text(encoding="utf-8"))
    assert found
    return found[0].splitlines()[3:-1]
