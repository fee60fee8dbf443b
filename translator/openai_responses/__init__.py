"""OpenAI's Responses API as an upstream API."""

from translator.dialect import Dialect
from translator.request.retry_repairs import OPENAI_RULES, repair_by

from .request_body import build_request
from .responses_stream import ResponsesStream, map_error

DIALECT = Dialect(
    name="responses",
    path="/responses",
    build_request=build_request,
    stream=ResponsesStream,
    map_error=map_error,
    repair=repair_by(OPENAI_RULES),
)

__all__ = ["DIALECT", "ResponsesStream", "build_request", "map_error"]
