"""Checks of decoded JSON, small enough to be put together into tables; the words are Anthropic's.

A check takes a value and returns nothing; what does not fit raises ``Fault`` with the path below
that value. Paths are put together only on the way out, so that good input pays nothing for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Check = Callable[[Any], None]


class Fault(Exception):
    """A value does not fit. ``path`` leads to it from the value that was checked."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = list(path)

    def under(self, name: str) -> "Fault":
        """The same fault, seen from one level further out."""
        self.path.insert(0, name)
        return self


def anything(value: Any) -> None:
    """Whatever it is, the dialects copy it or leave it."""


def string(value: Any) -> None:
    if not isinstance(value, str):
        raise Fault("Input should be a valid string")


def words(value: Any) -> None:
    """A string with something in it."""
    if not isinstance(value, str):
        string(value)
    if not value:
        raise Fault("String should have at least 1 character")


def boolean(value: Any) -> None:
    if not isinstance(value, bool):
        raise Fault("Input should be a valid boolean")


def mapping(value: Any) -> None:
    if not isinstance(value, dict):
        raise Fault("Input should be an object")


def integer(minimum: int) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Fault("Input should be a valid integer")
        if value < minimum:
            raise Fault(f"Input should be greater than or equal to {minimum}")

    return check


def number(minimum: float, maximum: float) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Fault("Input should be a valid number")
        if not minimum <= value <= maximum:
            raise Fault(f"Input should be between {minimum:g} and {maximum:g}")

    return check


def one_of(*choices: str) -> Check:
    shown = ", ".join(repr(choice) for choice in choices)

    def check(value: Any) -> None:
        if not isinstance(value, str) or value not in choices:
            raise Fault(f"Input should be one of {shown}")

    return check


def either(*checks: Check) -> Check:
    """What the first check takes, or the next one; the fault is the last one's."""
    *others, last = checks

    def check(value: Any) -> None:
        for each in others:
            try:
                each(value)
            except Fault:
                continue
            return
        last(value)

    return check


PASSES: Final[dict[Check, type]] = {string: str, boolean: bool, mapping: dict}
"""Checks that take every value of a type: one look at the type spares the call."""


def list_of(check: Check) -> Check:
    def check_all(value: Any) -> None:
        if not isinstance(value, list):
            raise Fault("Input should be a valid list")
        for number_, item in enumerate(value):
            try:
                check(item)
            except Fault as fault:
                raise fault.under(str(number_)) from None

    return check_all


def values_of(check: Check) -> Check:
    """An object whose values ``check`` takes, whatever their names."""

    def check_all(value: Any) -> None:
        mapping(value)
        for name, item in value.items():
            try:
                check(item)
            except Fault as fault:
                raise fault.under(str(name)) from None

    return check_all


def text_or(check: Check) -> Check:
    """A string, or what ``check`` takes."""

    def check_either(value: Any) -> None:
        if not isinstance(value, str):
            check(value)

    PASSES[check_either] = str
    return check_either


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """An object with known fields. Optional ones may be null; unknown ones are not looked at."""

    required: Mapping[str, Check] = field(default_factory=dict)
    optional: Mapping[str, Check] = field(default_factory=dict)
    also: Check = anything
    """A last look at the whole object."""
    passing: Mapping[str, type] = field(init=False)
    """Fields that need no check when they have this type; half of a request's time for checks."""

    def __post_init__(self) -> None:
        checks = {**self.optional, **self.required}
        passing = {name: PASSES[check] for name, check in checks.items() if check in PASSES}
        object.__setattr__(self, "passing", passing)  # once, before anybody sees it

    def __call__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise Fault("Input should be an object")
        required, optional, passing = self.required, self.optional, self.passing
        for name, item in value.items():
            if type(item) is passing.get(name):
                continue
            check = required.get(name)
            if check is None:
                check = optional.get(name) if item is not None else None
                if check is None:
                    continue
            try:
                check(item)
            except Fault as fault:
                raise fault.under(name) from None
        for name in required:
            if name not in value:
                raise Fault("Field required", name)
        if self.also is not anything:  # as nearly everywhere: a call for each block less
            self.also(value)


@dataclass(frozen=True, slots=True, eq=False)
class Tagged:
    """An object whose ``type`` says which shape it has."""

    shapes: Mapping[str, Check]

    def __call__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise Fault("Input should be an object")
        kind = value.get("type")
        shape = self.shapes.get(kind) if isinstance(kind, str) else None
        if shape is None:
            raise self._unknown(kind, missing="type" not in value)
        shape(value)

    def _unknown(self, kind: Any, *, missing: bool) -> Fault:
        if missing:
            return Fault("Field required", "type")
        if not isinstance(kind, str):
            return Fault("Input should be a valid string", "type")
        expected = ", ".join(repr(tag) for tag in sorted(self.shapes))
        return Fault(
            f"Input tag {shortened(kind)!r} does not match any of the expected tags: {expected}",
            "type",
        )


MAX_ECHO: Final = 60


def shortened(text: str) -> str:
    """A client's word as it may be repeated in a message: never a whole prompt by mistake."""
    return text if len(text) <= MAX_ECHO else text[:MAX_ECHO] + "…"
