"""Test ``benchmarks.promises``: it runs the long tests, and the page has a row for each."""

import shutil
import sys
from pathlib import Path
from subprocess import run as started

import pytest
from rich.progress import Progress

from benchmarks.promises import LONG, MEASURED, Long, run


@pytest.mark.slow  # it runs the fuzzer
def test_a_quick_run_writes_its_output_file_and_its_row_on_the_page(repository, tmp_path):
    page = Path(shutil.copy(repository / "docs/promises.md", tmp_path))
    before = rows_of(page)
    options = ["--quick", "--only", "G13", "--page", page, "--output", tmp_path]

    done = started(  # noqa: S603 - our own command line
        [sys.executable, "-m", "benchmarks.promises", *options],
        cwd=repository, check=True, capture_output=True, text=True,
    )  # fmt: skip

    (output,) = tmp_path.glob("G13*.txt")
    last = output.read_text().splitlines()[-1]
    assert last.endswith(" 0 findings")
    assert last in done.stdout
    changed = [row for row in rows_of(page) if row not in before]
    (at,) = [n for n, long in enumerate(LONG) if long.goal == "G13"]
    assert changed == [rows_of(page)[at]]
    assert "| `python -m tests.slow.fuzz 2` | met | " in changed[0]
    assert changed[0].endswith(f" | {last} |")


@pytest.mark.parametrize(("status", "passed"), [(0, True), (1, False)])
def test_a_promise_passes_when_its_command_exits_with_zero(tmp_path, status, passed):
    command = f'''A=1 python -c "import os, sys; print('│ so', os.environ['A'], '│'); sys.exit({status})"'''
    with Progress(disable=True) as progress:
        outcome = run(Long("G00", "nothing", command, 1, 1, 0.01), 1, tmp_path / "output", progress)

    assert (outcome.passed, outcome.last_line) == (passed, "so 1")


def test_numeric_sizes_scale_down_and_word_sizes_switch():
    many, word = (Long("G00", "", "x {size}", *sizes, 10) for sizes in [(1000, 7), ("all", "few")])

    assert [many.at(scale) for scale in (1, 0.1, 0)] == ["x 1000", "x 100", "x 7"]
    assert [word.at(scale) for scale in (1, 0.1, 0)] == ["x all", "x few", "x few"]
    assert many.expected_s(0.5) == 300


def test_the_page_has_a_row_for_each_in_their_order(repository):
    rows = [row.split(" | ")[:3] for row in rows_of(repository / "docs/promises.md")]

    assert [row[:2] for row in rows] == [[f"| {long.goal}", long.proves] for long in LONG]
    for (*_, command), long in zip(rows, LONG, strict=True):  # a run may have another size
        before, _, after = f"`{long.command}`".partition("{size}")
        assert command.startswith(before)
        assert command.endswith(after)


def rows_of(page):
    found = MEASURED.search(page.read_text(encoding="utf-8"))
    assert found
    return found[0].splitlines()[3:-1]
