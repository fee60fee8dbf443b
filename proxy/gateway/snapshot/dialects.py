"""The dialects (the API formats of upstreams), by their names in the configuration."""

from collections.abc import Mapping
from typing import Final

from translator import anthropic_upstream, openai_chat, openai_responses
from translator.dialect import Dialect

DIALECTS: Final[Mapping[str, Dialect]] = {
    "anthropic": anthropic_upstream.DIALECT,
    "chat": openai_chat.DIALECT,
    "responses": openai_responses.DIALECT,
}
