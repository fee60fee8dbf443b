"""Run a test for all cases of a table as one test of pytest.

A test costs 10 ms of pytest's own work, which is more than most cases of the translator take.
"""

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

Test = Callable[..., Any]
PARAM = type(pytest.param())
FAILURES = (Exception, pytest.fail.Exception, pytest.skip.Exception)
"""What ends a case. A skipped case is a failure, because nothing would report it."""


def for_each(
    names: str | Sequence[str],
    cases: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[str] | None = None,
) -> Callable[[Test], Test]:
    """Call the test with each case in turn, and fail with the errors of all cases that fail.

    The arguments are those of ``pytest.mark.parametrize``, and two decorators multiply their cases.
    All cases of one test share its fixtures: where a case needs a fresh one, use parametrize.
    A table without data is one case with the mark ``skip``, which skips the test with its reason.
    """
    cases = list(cases)
    skips = [mark for case in cases if isinstance(case, PARAM) for mark in case.marks]
    if skips:
        assert len(cases) == 1, "A case that is skipped must be the only one."
        assert [mark.name for mark in skips] == ["skip"], "Only parametrize can apply other marks."
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    ids = ids if ids is None or callable(ids) else list(ids)
    table = [named(case, parameters, ids, place) for place, case in enumerate(cases)]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            report = Report(len(table))
            for name, arguments in table:
                with report.case(name):
                    test(*args, **fixtures, **arguments)
            report.finish()

        @functools.wraps(test)
        async def run_async(*args: Any, **fixtures: Any) -> None:
            report = Report(len(table))
            for name, arguments in table:
                with report.case(name):
                    await test(*args, **fixtures, **arguments)
            report.finish()

        signature = inspect.signature(test)
        missing = set(parameters) - set(signature.parameters)
        assert not missing, f"{test.__name__} has no parameters {sorted(missing)}."
        fixtures = [p for name, p in signature.parameters.items() if name not in parameters]
        made = run_async if inspect.iscoroutinefunction(test) else run
        made.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        for skip in skips:
            made = skip(made)
        return made

    return decorate


class Report:
    """The errors of the cases of one test."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.failed: dict[str, BaseException] = {}

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            error.add_note(f"The case is {name}.")
            self.failed[name] = error

    def finish(self) -> None:
        assert self.cases, "The table has no cases."
        if self.failed:
            title = f"{len(self.failed)} of {self.cases} cases fail: {', '.join(self.failed)}"
            raise BaseExceptionGroup(title, list(self.failed.values()))


def named(case: Any, parameters: Sequence[str], ids: Any, place: int) -> tuple[str, dict[str, Any]]:
    """Return the name of a case, which begins with its place in the table, and its arguments."""
    if isinstance(case, PARAM):
        values, name = case.values, case.id
    else:
        values, name = ((case,) if len(parameters) == 1 else tuple(case)), None
    if name is None and callable(ids):
        name = "-".join(str(ids(value)) for value in values)
    elif name is None:
        name = ids[place] if ids else reprlib.repr(values if len(values) > 1 else values[0])
    return f"{place}: {name}", dict(zip(parameters, values, strict=True))
