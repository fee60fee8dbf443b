"""Validate request bodies with the openai SDK's types and reject unknown keys."""

import copy
import typing
from functools import cache
from typing import Any

import pydantic
import typing_extensions
from openai.types.responses import response_create_params

FORBID = pydantic.ConfigDict(extra="forbid")


@cache
def judge() -> pydantic.TypeAdapter[Any]:
    """Return a validator of a request body against ``ResponseCreateParams``; unknown keys are errors."""
    _forbid_extras(response_create_params.ResponseCreateParams, set())
    return pydantic.TypeAdapter(response_create_params.ResponseCreateParams)


def assert_valid(body: dict[str, Any]) -> None:
    checked = judge().validate_python(copy.deepcopy(body), strict=True)

    _exhaust(checked)


def _forbid_extras(kind: Any, seen: set[int]) -> None:
    """Mark every TypedDict below a type; pydantic reads ``__pydantic_config__`` from it."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    if typing_extensions.is_typeddict(kind):
        kind.__pydantic_config__ = FORBID
        for inner in typing.get_type_hints(kind, include_extras=True).values():
            _forbid_extras(inner, seen)
    for inner in typing.get_args(kind):
        _forbid_extras(inner, seen)


def _exhaust(value: Any) -> None:
    """Walk through lazily validated iterables (``Iterable[...]`` fields), so that they are checked."""
    if isinstance(value, dict):
        for inner in value.values():
            _exhaust(inner)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for inner in value:
            _exhaust(inner)
