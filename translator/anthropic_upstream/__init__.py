"""Requests to and responses from Anthropic-compatible upstreams; responses pass unchanged."""

from typing import Final

from translator.dialect import Dialect
from translator.request.retry_repairs import ANTHROPIC_RULES, repair_by

from .error_body import map_error
from .request import build_request
from .stream import AnthropicStream

DIALECT: Final = Dialect(
    name="anthropic",
    path="/v1/messages",
    build_request=build_request,
    stream=AnthropicStream,
    map_error=map_error,
    repair=repair_by(ANTHROPIC_RULES),
)
