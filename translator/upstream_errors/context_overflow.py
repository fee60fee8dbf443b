"""Recognize errors about the context window, and write them in Anthropic's exact words.

Clients parse two of Anthropic's messages. At ``prompt is too long: N tokens > M maximum`` they
compact the conversation. At ``input length and `max_tokens` exceed context limit: A + B > C`` they
request less output. Source: docs/mapping.md.
"""

import dataclasses
import re
from typing import Final

from translator.anthropic.error_body import client_message

from .body_parser import ErrorFields
from .token_limits import TokenLimits, read_output_limit, read_token_limits

TOO_LONG: Final = re.compile(
    r"context[ _](?:length|window|size)|(?:prompt|messages|input) (?:is )?too long"
    r"|too_many_prompt_tokens|too many tokens|maximum prompt length|input token count"
    r"|exceeded model token limit|prompt exceeds max|range of input length"
    r"|exceeds the maximum allowed length|must have less than \d+ tokens",
    re.IGNORECASE,
)
"""Error texts for a prompt that is too long: of OpenAI, Mistral, llama.cpp; Perplexity, Cohere,
xAI, Gemini; Moonshot, GLM, Qwen; SGLang, TGI."""

EXCEEDED: Final = re.compile(
    r"exceed|too long|too many|(?:longer|larger|greater) than", re.IGNORECASE
)
"""With a status that does not mean a bad request, the text must also match this pattern: llama.cpp
and LocalAI send 500, LM Studio an error event in a response with status 200."""

BAD_REQUEST: Final = frozenset({400, 422})
OTHER_CAUSES: Final = frozenset({401, 402, 403, 408, 429})
"""Statuses that identify the error; their texts may mention the context window as well."""

TOO_LONG_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",  # Copilot
        "tokens_limit_reached",  # GitHub Models
        "too_many_prompt_tokens",
        "1261",  # GLM, whose text may be Chinese
    }
)

OUTPUT_TOO_LARGE: Final = "input length and `max_tokens` exceed context limit"
"""The start of Anthropic's message for a prompt that fits, but not together with the output."""

MIN_CLIENT_ROOM: Final = 4_000
"""Tokens. With less room for the output, the client gets the message to compact: Claude Code
subtracts 1,000 tokens from the room and gives up below 3,000."""


def overflow_message(status: int, fields: ErrorFields) -> str | None:
    """Return Anthropic's message for an error about the context window; None for another error."""
    limits = limits_of(fields)
    if not _is_overflow(status, fields, limits):
        return None
    if limits.output and limits.room >= MIN_CLIENT_ROOM:
        return (
            f"{OUTPUT_TOO_LARGE}: {limits.prompt} + {limits.output} > {limits.window},"
            " decrease input length or `max_tokens` and try again"
        )
    tokens = limits.prompt
    if tokens <= limits.window:  # the prompt alone would fit, or its length is unknown
        tokens = max(limits.total, limits.prompt + limits.output)
    if tokens > limits.window > 0:
        quota = " (the account's limit of tokens for a time)" if limits.is_quota else ""
        return f"prompt is too long: {tokens} tokens > {limits.window} maximum{quota}"
    if fields.message.startswith("prompt is too long"):
        return client_message(fields.message)
    text = fields.message if fields.readable else "the upstream names no numbers"
    return client_message(f"prompt is too long: {text}")


def limits_of(fields: ErrorFields) -> TokenLimits:
    """Return the token counts of an error: from its own fields, else from its text."""
    limits = read_token_limits(fields.message)
    if not (fields.prompt_tokens and fields.context_window):
        return limits
    return dataclasses.replace(limits, prompt=fields.prompt_tokens, window=fields.context_window)


def _is_overflow(status: int, fields: ErrorFields, limits: TokenLimits) -> bool:
    if fields.code in TOO_LONG_CODES or fields.type in TOO_LONG_CODES:
        return True
    if limits.is_quota and status in (400, 413, 429):
        # Groq's 413 and OpenAI's 429: waiting does not help a request that alone exceeds the limit
        # (openclaw/openclaw#130275).
        return limits.is_exceeded
    is_anthropics = fields.message.startswith(OUTPUT_TOO_LARGE)
    is_page = not fields.readable and fields.message.lstrip().startswith("<")
    if status in OTHER_CAUSES or is_anthropics or is_page or not fields.message:
        return False
    if limits.is_exceeded:
        return True
    # Groq's text about the largest output mentions the context window.
    if read_output_limit(fields.message) or TOO_LONG.search(fields.message) is None:
        return False
    return status in BAD_REQUEST or EXCEEDED.search(fields.message) is not None
