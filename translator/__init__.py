"""Translate between the Anthropic Messages API and OpenAI upstreams, in pure functions.

The functions take and return decoded JSON, do no I/O, read no clock and use no randomness; they
need only the standard library. ``docs/mapping.md`` lists how every field is translated.
"""

from translator.stream.sse import format_sse

from .anthropic.stop_reason import derive_stop_reason
from .errors import BadRequest, BadUpstream, IllegalMove, TranslatorError
from .translate import (
    map_anthropic_to_openai_chat,
    map_anthropic_to_openai_response,
    map_openai_chat_to_anthropic,
    map_openai_response_to_anthropic,
    translate_openai_chat_events,
    translate_openai_events,
)

__all__ = [
    "BadRequest",
    "BadUpstream",
    "IllegalMove",
    "TranslatorError",
    "derive_stop_reason",
    "format_sse",
    "map_anthropic_to_openai_chat",
    "map_anthropic_to_openai_response",
    "map_openai_chat_to_anthropic",
    "map_openai_response_to_anthropic",
    "translate_openai_chat_events",
    "translate_openai_events",
]
