"""OpenAI's Responses API as an upstream dialect."""

from translator.dialect import Dialect
from translator.repairs import RESPONSES_FIXES, repair_by

from .error_body import map_error
from .request import build_request
from .stream import ResponsesStream

DIALECT = Dialect(
    name="responses",
    path="/responses",
    build_request=build_request,
    stream=ResponsesStream,
    map_error=map_error,
    repair=repair_by(RESPONSES_FIXES),
)

__all__ = ["DIALECT", "ResponsesStream", "build_request", "map_error"]
