"""OpenAI's Responses API as an upstream API."""

from typing import Final

from translator.dialect import Dialect
from translator.request.retry_repairs import OPENAI_RULES, repair_by
from translator.upstream_errors import map_error

from .request_body import build_request
from .responses_stream import ResponsesStream

DIALECT: Final = Dialect(
    name="responses",
    path="/responses",
    build_request=build_request,
    stream=ResponsesStream,
    map_error=map_error,
    repair=repair_by(OPENAI_RULES),
)
