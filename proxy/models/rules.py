"""What the JSON of teams and keys may say: limits, names of models, networks, options.

It is typed by hand in the admin, where a slip would not show: an unknown limit limits nothing, a
name outside of a list allows everything, and what is of another kind would keep the gateway from
reading anybody's keys. bridge.toml says the same by its types (``proxy.config.schema``).
"""

import difflib
import ipaddress
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models

LIMITS: Final = ("rpm", "tpm", "concurrency")
EXTRAS: Final = ("metadata", "blocks")
KEEPS_NO_WORDS: Final = "metadata"
"""The one ``store`` of a key: it keeps less than its team, never more."""


def check(row: models.Model) -> None:
    """Raise ValidationError by field. A field that was left empty gets its default."""
    wrong = {}
    for field, (empty, complaints) in FIELDS.items():
        if not hasattr(row, field):
            continue
        if getattr(row, field) is None:
            setattr(row, field, empty())
        if told := next(complaints(getattr(row, field)), ""):
            wrong[field] = told
    if wrong:
        raise ValidationError(wrong)


def _limits(found: Any) -> Iterator[str]:
    yield from _entries(found, LIMITS, "limit")
    for name, most in found.items():
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            yield f"limit {name!r} is {most!r}; a whole number from 1 on is expected"


def _models(found: Any) -> Iterator[str]:
    yield from _names(found, '["claude-*"]')


def _networks(found: Any) -> Iterator[str]:
    yield from _names(found, '["10.0.0.0/8"]')
    for network in found:
        try:
            ipaddress.ip_network(network)
        except ValueError as wrong:
            yield str(wrong)


def _options(found: Any) -> Iterator[str]:
    yield from _entries(found, OPTIONS, "option")
    for name, value in found.items():
        takes, expected = OPTIONS[name]
        if not takes(value):
            yield f"option {name!r} is {value!r}; expected {expected}"


def _entries(found: Any, known: Collection[str], what: str) -> Iterator[str]:
    """Whether it is an object without unknown names."""
    if not isinstance(found, dict):
        yield f"an object is expected, found {found!r}"
        return
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            yield f"unknown {what} {name!r}; {hint}"


def _names(found: Any, example: str) -> Iterator[str]:
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        yield f"a list of names is expected, such as {example}; found {found!r}"


def _extras(found: Any) -> bool:
    return isinstance(found, list) and all(one in EXTRAS for one in found)


OPTIONS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "strict": (lambda value: isinstance(value, bool), "true or false"),
    "events": (_extras, 'a list of "metadata", "blocks"'),
    "store": (lambda value: value == KEEPS_NO_WORDS, '"metadata"'),
}
FIELDS: Final[Mapping[str, tuple[type[Any], Callable[[Any], Iterator[str]]]]] = {
    "limits": (dict, _limits),
    "models_allowed": (list, _models),
    "ip_allow": (list, _networks),
    "options": (dict, _options),
}
