"""Checks of decoded JSON, small enough to be put together into tables; the words are Anthropic's.

A check takes a value and returns nothing; what does not fit raises ``Fault`` with the path below
that value. Paths are put together only on the way out, so that good input pays nothing for them.
"""

from collections.abc import Callable, Mapping
from types import NoneType
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


MAX_NAME: Final = 256
"""Characters of a name. Names end up in labels, tables and rows, so none may be a text."""
MAX_MODEL: Final = 200
"""Of a model's: as wide as the ledger's column, so that no two become one there."""


def short_name(value: Any) -> None:
    """A string that names something: not empty, and short."""
    words(value)
    if len(value) > MAX_NAME:
        raise Fault(f"String should have at most {MAX_NAME} characters")


def model_name(value: Any) -> None:
    words(value)
    if len(value) > MAX_MODEL:
        raise Fault(f"String should have at most {MAX_MODEL} characters")


def boolean(value: Any) -> None:
    if not isinstance(value, bool):
        raise Fault("Input should be a valid boolean")


def mapping(value: Any) -> None:
    if not isinstance(value, dict):
        raise Fault("Input should be an object")


def integer(minimum: int) -> Check:
    def check(value: Any) -> None:
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
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


PASSES: Final[dict[Check, tuple[type, ...]]] = {
    boolean: (bool,),
    mapping: (dict,),
    string: (str,),
    words: (str,),
}
"""Checks that take whatever is of these types, ``words`` but the empty one: one look at it spares
the call."""


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

    sure = [each for each in checks if each is not words]
    PASSES[check] = tuple(kind for each in sure for kind in PASSES.get(each, ()))
    return check


def list_of(check: Check) -> Check:
    """A list whose items ``check`` takes."""

    def check_all(value: Any) -> None:
        if type(value) is not list and not isinstance(value, list):
            raise Fault("Input should be a valid list")
        for number_, item in enumerate(value):
            try:
                check(item)
            except Fault as fault:
                raise fault.under(str(number_)) from None

    return check_all


def list_by(
    key: str, shapes: Mapping[str, Check], otherwise: Check, *, or_text: bool = False
) -> Check:
    """A list of objects, each of the shape that its ``key`` names; with ``or_text`` also a string.

    ``otherwise`` takes what names no shape, and tells what is wrong with it. What has two layers of
    checks elsewhere has one here: most of a request are messages and their blocks.
    """

    def check_all(value: Any) -> None:
        if type(value) is not list and not isinstance(value, list):
            if or_text and isinstance(value, str):
                return
            raise Fault("Input should be a valid list")
        for number_, item in enumerate(value):
            try:
                check = shapes[item[key]]
            except (KeyError, TypeError):
                check = otherwise
            try:
                check(item)
            except Fault as fault:
                raise fault.under(str(number_)) from None

    PASSES[check_all] = (str,) if or_text else ()
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


def shape(
    required: Mapping[str, Check] | None = None,
    optional: Mapping[str, Check] | None = None,
    also: Check | None = None,
) -> Check:
    """An object with known fields. Optional ones may be null; unknown ones are not looked at.

    ``also`` is a last look at the whole object.
    """
    demanded = tuple(required or ())
    checks = {**(optional or {}), **(required or {})}
    passing = {name: PASSES.get(check, ()) for name, check in checks.items()}
    passing |= {name: (*passing[name], NoneType) for name in checks if name not in demanded}

    def check_fields(value: Any) -> None:
        if type(value) is not dict and not isinstance(value, dict):
            raise Fault("Input should be an object")
        # Half of a request's checks end at the type; no call for them.
        for name in value:
            if name not in passing:
                continue
            item = value[name]
            if type(item) in passing[name] and (item != "" or checks[name] is not words):
                continue
            try:
                checks[name](item)
            except Fault as fault:
                raise fault.under(name) from None
        for name in demanded:
            if name not in value:
                raise Fault("Field required", name)
        if also is not None:
            also(value)

    return check_fields


def tagged(shapes: Mapping[str, Check], elsewhere: Mapping[str, str] | None = None) -> Check:
    """An object whose ``type`` says which shape it has.

    ``elsewhere``: types that fit in messages of another role, and of which.
    """

    def check_by_type(value: Any) -> None:
        if type(value) is not dict and not isinstance(value, dict):
            raise Fault("Input should be an object")
        if "type" not in value:
            raise Fault("Field required", "type")
        kind = value["type"]
        if type(kind) is not str and not isinstance(kind, str):
            raise Fault("Input should be a valid string", "type")
        if kind not in shapes:
            raise _unknown(kind, shapes, elsewhere or {})
        shapes[kind](value)

    return check_by_type


def _unknown(kind: str, shapes: Mapping[str, Check], elsewhere: Mapping[str, str]) -> Fault:
    if kind in elsewhere:
        return Fault(f"`{kind}` blocks can only be in `{elsewhere[kind]}` messages", "type")
    expected = ", ".join(repr(tag) for tag in sorted(shapes))
    return Fault(
        f"Input tag {shortened(kind)!r} does not match any of the expected tags: {expected}",
        "type",
    )


MAX_ECHO: Final = 60


def shortened(text: str) -> str:
    """A client's word as it may be repeated in a message: never a whole prompt by mistake."""
    return text if len(text) <= MAX_ECHO else text[:MAX_ECHO] + "…"
