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
    # Servers of other APIs behind a compatible one: their own names of the limit.
    "max_output_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "model_length": "model_context_window_exceeded",  # Mistral
    "model_context_window_exceeded": "model_context_window_exceeded",  # GLM
    "context_length": "model_context_window_exceeded",
    "context_length_exceeded": "model_context_window_exceeded",
    "context_window_exceeded": "model_context_window_exceeded",
    "content_filter": "refusal",
    "sensitive": "refusal",  # GLM
    "refusal": "refusal",  # proxies for Anthropic
    "content_filtered": "refusal",  # proxies for Bedrock
    "guardrail_intervened": "refusal",
    "moderation": "refusal",
    "content_policy_violation": "refusal",
    "error_toxic": "refusal",  # Cohere
    "safety": "refusal",  # proxies for Gemini
    "recitation": "refusal",
    "blocklist": "refusal",
    "prohibited_content": "refusal",
    "spii": "refusal",
    "language": "refusal",
    "model_armor": "refusal",
    "image_safety": "refusal",
    "image_prohibited_content": "refusal",
    "image_recitation": "refusal",
    "image_other": "end_turn",
    "no_image": "end_turn",
    "other": "end_turn",  # Gemini
    "finish_reason_unspecified": "end_turn",
}
"""Finish reason -> stop reason; any other one gives ``end_turn`` and is counted as unknown. A
comment names the servers that send a reason."""

COMPLETE: Final = frozenset({"end_turn", "tool_use"})
"""Stop reasons of a response that the upstream did not truncate, as far as it reports."""


def _failure(words: str, status: int = 502, error_type: str = "api_error") -> UpstreamError:
    return UpstreamError(status=status, error_type=error_type, message=words)


MALFORMED: Final = _failure("upstream stopped: malformed tool call")
"""Gemini: the model wrote a tool call that does not parse, or one that it may not make. Asked
again, it usually does better (googleapis/python-genai#1836)."""

FAILURES: Final = {
    **{
        reason: _failure(f"upstream stopped: {reason.replace('_', ' ')}")
        for reason in (
            "error",
            "abort",
            "aborted",
            "cancelled",
            "canceled",
            "failed",
            "timeout",
            "network_error",  # GLM
            "server_error",
            "internal_error",
            "internal_server_error",
            "too_many_tool_calls",  # Gemini
            "missing_thought_signature",  # Gemini
            "malformed_response",  # Gemini
        )
    },
    "insufficient_system_resource": _failure(  # DeepSeek
        "upstream is out of resources", 529, "overloaded_error"
    ),
    "engine_overloaded": _failure("upstream is overloaded", 529, "overloaded_error"),
    "function_call_filter": MALFORMED,
    "malformed_function_call": MALFORMED,  # Gemini's own name
    "unexpected_tool_call": MALFORMED,  # Gemini
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
