"""Stop a command at a chosen step, as a kill does."""

import contextlib
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any

import pytest


class Killed(BaseException):
    """Stops the command like a kill: no handler of the code under test runs afterwards."""


@contextlib.contextmanager
def killed_at(owner: ModuleType, step: str, call: int, when: str) -> Iterator[None]:
    """Kill the block before or after the given call of a function; fail if it is not called."""
    function = getattr(owner, step)
    calls = 0

    def run(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and when == "before":
            raise Killed
        result = function(*arguments, **options)
        if calls == call:
            if isinstance(result, Generator):
                list(result)
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        # A real kill would end the process of the tests.
        patch.setattr(owner, step, run)
        with pytest.raises(Killed):
            yield
