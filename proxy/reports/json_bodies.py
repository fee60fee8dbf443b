"""JSON bodies of the reports' API, with the bounds that every other body has."""

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import JSONParser

from proxy.json_bounds import count_values

MOST_VALUES: Final = 10_000
"""Of a body that writes one thing; a route with all its targets has some hundred."""


class TooManyValues(APIException):
    status_code = 413
    default_detail = f"the body holds more than {MOST_VALUES} values"


class BoundedJSON(JSONParser):
    """Raises ParseError (400) or TooManyValues (413). Bytes are bounded by ``proxy.pages``."""

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        body = stream.read()
        if count_values(body) > MOST_VALUES:
            raise TooManyValues
        try:
            return json.loads(body, parse_constant=_refuse)  # takes half a surrogate pair as well
        except RecursionError:
            raise ParseError("the body is nested too deeply") from None
        except ValueError as error:
            raise ParseError(f"the body is no JSON: {error}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
