"""Parse the JSON request bodies of the reports API, within limits of size and nesting."""

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from rest_framework.exceptions import APIException, ParseError, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.serializers import Serializer

from proxy.json_value_limit import count_values

MAX_VALUES: Final = 10_000
"""Maximum JSON values in a body. A body has one row; a large route has some hundred values."""


class TooManyValues(APIException):
    status_code = 413
    default_detail = f"the body has more than {MAX_VALUES} values"


class BoundedJSON(JSONParser):
    """A JSON parser that raises ParseError (400) or TooManyValues (413) for an unacceptable body.

    ``proxy.server.django_limits`` limits the size of a body in bytes.
    """

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        body = stream.read()
        if count_values(body) > MAX_VALUES:
            raise TooManyValues
        try:
            return json.loads(body, parse_constant=_refuse)  # this also accepts unpaired surrogates
        except RecursionError:
            raise ParseError("the body is nested too deeply") from None
        except ValueError as error:
            raise ParseError(f"the body is not JSON: {error}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def validated_body(request: Request, shape: type[Serializer[Any]]) -> dict[str, Any]:
    """Return the values of a JSON object; ParseError or ValidationError for an invalid one.

    Unknown fields are invalid.
    """
    if not isinstance(request.data, dict):
        raise ParseError("the body is not a JSON object")
    body = shape(data=request.data)
    for name in request.data:
        if name not in body.fields:
            known = ", ".join(sorted(body.fields))
            raise ValidationError({str(name)[:60]: f"unknown field; known: {known}"})
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)
