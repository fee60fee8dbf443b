"""OpenAI's Responses API as an upstream API."""

from translator.dialect import Dialect
from translator.openai_responses.request.request_body import build_request
from translator.openai_responses.stream.error_body import map_error
from translator.openai_responses.stream.responses_stream import ResponsesStream
from translator.request.retry_repairs import OPENAI_RULES, repair_by

DIALECT = Dialect(
    name="responses",
    path="/responses",
    build_request=build_request,
    stream=ResponsesStream,
    map_error=map_error,
    repair=repair_by(OPENAI_RULES),
)

__all__ = ["DIALECT", "ResponsesStream", "build_request", "map_error"]
