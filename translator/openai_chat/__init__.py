"""Chat Completions as an upstream API, which nearly every model server supports."""

from typing import Final

from translator.dialect import Dialect
from translator.request.retry_repairs import OPENAI_RULES, repair_by
from translator.upstream_errors import map_error

from .chat_stream import ChatStream
from .request_body import build_request

DIALECT: Final = Dialect(
    name="chat",
    path="/chat/completions",
    build_request=build_request,
    stream=ChatStream,
    map_error=map_error,
    repair=repair_by(OPENAI_RULES),
)
