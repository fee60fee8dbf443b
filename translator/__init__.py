"""Anthropic Messages spoken by OpenAI upstreams: pure functions and machines over dicts.

No I/O, no clock, no randomness; the standard library only. ``docs/mapping.md`` has every field.
"""

from .anthropic.stop_reason import derive_stop_reason
from .errors import BadRequest, BadUpstream, IllegalMove, TranslatorError
from .sse import format_sse
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
