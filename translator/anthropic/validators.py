"""Small check functions for decoded JSON, combined into checks of whole requests.

Error messages are Anthropic's. A check takes a value and returns nothing. For an invalid value it
raises ``ValidationFault`` with the path from the value to the fault. Paths are built only for
faults, so valid input costs no time.
"""

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final

Check = Callable[[Any], None]


class ValidationFault(Exception):
    """An invalid value. ``path`` leads from the checked value to the invalid one inside it."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = list(path)

    def with_parent(self, name: str) -> "ValidationFault":
        """Put ``name`` in front of the path and return this fault."""
        self.path.insert(0, name)
        return self


def any_value(value: Any) -> None:
    """Accept any value; request translation copies or ignores it."""


def string(value: Any) -> None:
    if not isinstance(value, str):
        raise ValidationFault("Input should be a valid string")


def non_empty_string(value: Any) -> None:
    """Check that the value is a string of at least one character."""
    if not isinstance(value, str):
        string(value)
    if not value:
        raise ValidationFault("String should have at least 1 character")


MAX_NAME: Final = 256
"""Maximum characters of a tool or server name, because names become metric labels and table
columns."""
MAX_MODEL: Final = 200
"""Maximum characters of a model name: the width of the ledger's column, so that no name is cut."""


def short_name(value: Any) -> None:
    """Check that the value is a non-empty string of at most ``MAX_NAME`` characters."""
    non_empty_string(value)
    if len(value) > MAX_NAME:
        raise ValidationFault(f"String should have at most {MAX_NAME} characters")


def model_name(value: Any) -> None:
    non_empty_string(value)
    if len(value) > MAX_MODEL:
        raise ValidationFault(f"String should have at most {MAX_MODEL} characters")


def boolean(value: Any) -> None:
    if not isinstance(value, bool):
        raise ValidationFault("Input should be a valid boolean")


def mapping(value: Any) -> None:
    if not isinstance(value, dict):
        raise ValidationFault("Input should be an object")


def integer(minimum: int) -> Check:
    def check(value: Any) -> None:
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
            raise ValidationFault("Input should be a valid integer")
        if value < minimum:
            raise ValidationFault(f"Input should be greater than or equal to {minimum}")

    return check


UNSET: Final = -1
"""Older versions of LangChain.js send this as ``top_k`` and ``top_p`` if neither is set, which
Anthropic accepted for years (FlowiseAI/Flowise#5998)."""


def or_unset(check: Check) -> Check:
    """Accept ``UNSET`` as well as what ``check`` accepts."""

    def check_value(value: Any) -> None:
        if value != UNSET:
            check(value)

    return check_value


def number(minimum: float, maximum: float) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValidationFault("Input should be a valid number")
        if not minimum <= value <= maximum:
            raise ValidationFault(f"Input should be between {minimum:g} and {maximum:g}")

    return check


def one_of(*choices: str) -> Check:
    choice_list = ", ".join(repr(choice) for choice in choices)

    def check(value: Any) -> None:
        if not isinstance(value, str) or value not in choices:
            raise ValidationFault(f"Input should be one of {choice_list}")

    return check


ACCEPTED_TYPES: Final[dict[Check, tuple[type, ...]]] = {
    boolean: (bool,),
    mapping: (dict,),
    string: (str,),
    non_empty_string: (str,),
}
"""For each check, the value types that it always accepts, so that the caller can skip the call
(``non_empty_string`` does not accept "")."""


def any_of(*checks: Check) -> Check:
    """Accept a value that one of ``checks`` accepts; otherwise raise the last check's fault."""
    *others, last = checks

    def check(value: Any) -> None:
        for attempt in others:
            try:
                attempt(value)
            except ValidationFault:
                continue
            return
        last(value)

    type_checks = [attempt for attempt in checks if attempt is not non_empty_string]
    ACCEPTED_TYPES[check] = tuple(
        kind for attempt in type_checks for kind in ACCEPTED_TYPES.get(attempt, ())
    )
    return check


def list_of(check: Check) -> Check:
    """Check that the value is a list and that ``check`` accepts each item."""

    def check_all(value: Any) -> None:
        if type(value) is not list and not isinstance(value, list):
            raise ValidationFault("Input should be a valid list")
        for number_, item in enumerate(value):
            try:
                check(item)
            except ValidationFault as fault:
                raise fault.with_parent(str(number_)) from None

    return check_all


def list_by_key(
    key: str, checks: Mapping[str, Check], otherwise: Check, *, or_text: bool = False
) -> Check:
    """Check a list of objects: each object's value of ``key`` selects its check from ``checks``.

    ``otherwise`` checks an object that selects none; with ``or_text`` a string is valid instead of
    the list. One function does both steps to save calls, because messages and their blocks are most
    of a request.
    """

    def check_all(value: Any) -> None:
        if type(value) is not list and not isinstance(value, list):
            if or_text and isinstance(value, str):
                return
            raise ValidationFault("Input should be a valid list")
        for number_, item in enumerate(value):
            try:
                check = checks[item[key]]
            except (KeyError, TypeError):
                check = otherwise
            try:
                check(item)
            except ValidationFault as fault:
                raise fault.with_parent(str(number_)) from None

    ACCEPTED_TYPES[check_all] = (str,) if or_text else ()
    return check_all


def mapping_of(check: Check) -> Check:
    """Check that the value is an object with values that ``check`` accepts; any keys are valid."""

    def check_all(value: Any) -> None:
        mapping(value)
        for name, item in value.items():
            try:
                check(item)
            except ValidationFault as fault:
                raise fault.with_parent(str(name)) from None

    return check_all


def object_of(
    required: Mapping[str, Check] | None = None,
    optional: Mapping[str, Check] | None = None,
    extra_check: Check | None = None,
) -> Check:
    """Check that the value is an object, and check its known fields; others are ignored.

    Optional fields may be null. ``extra_check`` runs last, on the whole object.
    """
    required_names = tuple(required or ())
    checks = {**(optional or {}), **(required or {})}
    accepted = {name: ACCEPTED_TYPES.get(check, ()) for name, check in checks.items()}
    accepted |= {name: (*accepted[name], NoneType) for name in checks if name not in required_names}

    def check_fields(value: Any) -> None:
        if type(value) is not dict and not isinstance(value, dict):
            raise ValidationFault("Input should be an object")
        # For half of all fields the type alone shows that the value is valid; skip the check.
        for name in value:
            if name not in accepted:
                continue
            item = value[name]
            if type(item) in accepted[name] and (
                item != "" or checks[name] is not non_empty_string
            ):
                continue
            try:
                checks[name](item)
            except ValidationFault as fault:
                raise fault.with_parent(name) from None
        for name in required_names:
            if name not in value:
                raise ValidationFault("Field required", name)
        if extra_check is not None:
            extra_check(value)

    return check_fields


def tagged_union(
    checks: Mapping[str, Check], other_roles: Mapping[str, str] | None = None
) -> Check:
    """Check an object whose ``type`` selects its check from ``checks``.

    ``other_roles`` is for the error message: block type -> the only role whose messages may contain
    it.
    """

    def check_by_type(value: Any) -> None:
        if type(value) is not dict and not isinstance(value, dict):
            raise ValidationFault("Input should be an object")
        if "type" not in value:
            raise ValidationFault("Field required", "type")
        kind = value["type"]
        if type(kind) is not str and not isinstance(kind, str):
            raise ValidationFault("Input should be a valid string", "type")
        if kind not in checks:
            raise _unknown_type_fault(kind, checks, other_roles or {})
        checks[kind](value)

    return check_by_type


def _unknown_type_fault(
    kind: str, checks: Mapping[str, Check], other_roles: Mapping[str, str]
) -> ValidationFault:
    if kind in other_roles:
        return ValidationFault(
            f"`{kind}` blocks can only be in `{other_roles[kind]}` messages", "type"
        )
    expected = ", ".join(repr(tag) for tag in sorted(checks))
    return ValidationFault(
        f"Input tag {shorten(kind)!r} does not match any of the expected tags: {expected}",
        "type",
    )


MAX_ECHO: Final = 60


def shorten(text: str) -> str:
    """Cut a client's string for an error message, so that the message does not quote a prompt."""
    return text if len(text) <= MAX_ECHO else text[:MAX_ECHO] + "…"
