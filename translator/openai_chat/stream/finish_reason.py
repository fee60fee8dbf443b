"""Map finish reasons of Chat Completions to Anthropic's stop reasons."""

from typing import Any, Final

from translator.dialect import UpstreamError

FINISH_REASONS: Final = {
    "stop": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",  # TGI (Text Generation Inference)
    # TGI, and proxies for Anthropic; the matched sequence is not reported.
    "stop_sequence": "end_turn",
    "complete": "end_turn",  # Cohere
    "end_turn": "end_turn",
    "tool_calls": "tool_use",
    "tool_use": "tool_use",
    "tool_call": "tool_use",  # Cohere
    "function_call": "tool_use",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "model_context_window_exceeded",  # Mistral
    "model_context_window_exceeded": "model_context_window_exceeded",  # GLM
    "content_filter": "refusal",
    "sensitive": "refusal",  # GLM
    "refusal": "refusal",  # proxies for Anthropic
    "content_filtered": "refusal",  # proxies for Bedrock
    "guardrail_intervened": "refusal",
    "safety": "refusal",  # proxies for Gemini
    "recitation": "refusal",
    "blocklist": "refusal",
    "prohibited_content": "refusal",
    "spii": "refusal",
    "language": "refusal",
    "image_safety": "refusal",
    "image_prohibited_content": "refusal",
    "image_recitation": "refusal",
    "image_other": "end_turn",
    "no_image": "end_turn",
}
"""Finish reason -> stop reason; any other one gives ``end_turn`` and is counted as unknown. A
comment names the servers that send a reason."""

COMPLETE: Final = frozenset({"end_turn", "tool_use"})
"""Stop reasons of a response that the upstream did not truncate, as far as it reports."""

MALFORMED: Final = UpstreamError(  # Gemini: the model wrote a tool call that does not parse
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
    "malformed_function_call": MALFORMED,  # Gemini's own name
}
"""Finish reasons that mean that the upstream failed."""

PENDING: Final = frozenset({"null", "none"})
"""Values that mean "no finish reason yet" at DashScope and similar servers."""

STOP_FIELDS: Final = ("stop_reason", "matched_stop")
"""Fields in which vLLM and SGLang send the matched stop string; a number there is a token id."""


def stop_string_in(choice: dict[str, Any]) -> str | None:
    """Return the stop string that a choice reports as matched; None if it reports none."""
    stop_string = None
    for name in STOP_FIELDS:
        value = choice[name] if name in choice else None  # noqa: SIM401 - this form saves a call for each event
        if type(value) is str and value and value not in FINISH_REASONS:
            stop_string = value
    return stop_string


def normalize_finish_reason(reason: str) -> str:
    """Return the finish reason without Gemini's own reason after ``content_filter:``."""
    return reason.partition(":")[0].strip().lower() or reason
