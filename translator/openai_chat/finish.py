"""Chat's finish reasons in Anthropic's words; ``anthropic.stop_reason`` has the rule."""

from typing import Final

from translator.anthropic.usage import Usage
from translator.dialect import UpstreamError
from translator.notes import Note

FINISH_REASONS: Final = {
    "stop": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",  # TGI
    "stop_sequence": "end_turn",  # TGI, and proxies in front of Anthropic: it is not said which
    "complete": "end_turn",  # Cohere
    "end_turn": "end_turn",
    "tool_calls": "tool_use",
    "tool_use": "tool_use",
    "tool_call": "tool_use",  # Cohere
    "function_call": "tool_use",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "model_context_window_exceeded",  # Mistral: the window was full
    "model_context_window_exceeded": "model_context_window_exceeded",  # GLM
    "content_filter": "refusal",
    "sensitive": "refusal",  # GLM
    "refusal": "refusal",  # proxies in front of Anthropic
    "content_filtered": "refusal",  # and of Bedrock
    "guardrail_intervened": "refusal",
    "safety": "refusal",  # and of Gemini
    "recitation": "refusal",
    "blocklist": "refusal",
    "prohibited_content": "refusal",
    "spii": "refusal",
}
"""Any other reason ends the turn and is counted as unknown."""

MALFORMED: Final = UpstreamError(  # Gemini: its model wrote a call that does not parse
    status=502, error_type="api_error", message="upstream stopped: malformed tool call"
)

FAILURES: Final = {
    "error": UpstreamError(status=502, error_type="api_error", message="upstream stopped: error"),
    "abort": UpstreamError(status=502, error_type="api_error", message="upstream stopped: abort"),
    "insufficient_system_resource": UpstreamError(  # DeepSeek
        status=529, error_type="overloaded_error", message="upstream is out of resources"
    ),
    "network_error": UpstreamError(  # GLM
        status=502, error_type="api_error", message="upstream stopped: network error"
    ),
    "function_call_filter": MALFORMED,
    "malformed_function_call": MALFORMED,  # and in its own words
}
"""Finish reasons that are no end of an answer but the failure of one."""

PENDING: Final = frozenset({"null", "none"})
"""How DashScope's own API, and what is made like it, spells that there is none yet."""

STOP_FIELDS: Final = ("stop_reason", "matched_stop")
"""Where vLLM and SGLang name the stop string; a number there is a token that ended the answer."""


CUT_CALL: Final = Note(
    "stop_reason", "repaired", "the output limit cut a call that the upstream tells as finished"
)


def at_limit(cause: str | None, usage: Usage, max_tokens: int | None) -> bool:
    """Whether an end that the upstream calls a good one came where the client's limit is."""
    if cause not in ("end_turn", "tool_use") or usage.output is None or max_tokens is None:
        return False
    return usage.output >= max_tokens


def finish_word(reason: str) -> str:
    """The word of the tables: Gemini adds its own (``content_filter: PROHIBITED_CONTENT``)."""
    return reason.partition(":")[0].strip().lower() or reason
