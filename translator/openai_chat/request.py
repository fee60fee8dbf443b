"""One Anthropic request -> one Chat Completions body, as a page of tables.

Every field of a request has exactly one fate: COPIED, RENAMED, BUILT, DROPPED or REFUSED.
Source: mapping.md 1.2.
"""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic.types import MessagesRequest
from translator.dialect import Target, UpstreamRequest
from translator.draft import (
    Builder,
    Draft,
    answer_context,
    answered_here,
    build_fields,
    context_edits,
    identity,
    in_order,
    tier,
    turn_away,
)
from translator.errors import BadRequest
from translator.thinking import ASKED_BY
from translator.unsent import note_unsent

from .formats import response_format
from .messages import build_messages
from .reasoning import reasoning_fields
from .tools import build_tools

NOTHING: Final[dict[str, Any]] = {
    "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 0, "completion_tokens": 0},
}
"""The answer to a request for no tokens at all."""


SAMPLING: Final = ("temperature", "top_p", "top_k")


def _model(draft: Draft) -> dict[str, Any]:
    return {"model": draft.target.model or draft.request["model"]}


def _messages(draft: Draft) -> dict[str, Any]:
    return {"messages": build_messages(draft)}


def _max_tokens(draft: Draft) -> dict[str, Any]:
    wanted = draft.request["max_tokens"]
    if wanted is None:  # a request to count tokens may say so
        return {}
    return {draft.profile.max_tokens_field: wanted or 1}


def _sampling(draft: Draft) -> dict[str, Any]:
    """Temperature, top_p and top_k, where the server takes them beside its reasoning."""
    request = draft.request
    given = {n: request[n] for n in SAMPLING if request.get(n) is not None}
    if "top_k" in given and not draft.profile.top_k:
        draft.note("top_k", "dropped", "no equivalent; the answer is still an answer without it")
        del given["top_k"]
    if draft.profile.sampling_with_reasoning or _reasoning_is_off(draft):
        return given
    for name in given:
        draft.note(name, "dropped", "reasoning models take no sampling parameters")
    return {}


def _stop_sequences(draft: Draft) -> dict[str, Any]:
    """Not sent: ``finish_reason: stop`` does not say which one matched, so we look ourselves."""
    if draft.request.get("stop_sequences"):
        draft.note("stop_sequences", "emulated", "found in the answer by the gateway")
    return {}


def _output_config(draft: Draft) -> dict[str, Any]:
    if (draft.request.get("output_config") or {}).get("task_budget"):
        draft.note("output_config.task_budget", "ignored", "a hint for another provider's agent")
    return response_format(draft)


def _context_management(draft: Draft) -> dict[str, Any]:
    if context_edits(draft.request):
        draft.note("context_management", "dropped", "the upstream edits no context")
    return {}


def _container(draft: Draft) -> dict[str, Any]:
    container = draft.request.get("container")
    if not container:
        return {}
    if isinstance(container, dict) and container.get("skills"):
        raise BadRequest("container.skills", "the upstream runs no skills")
    draft.note("container", "dropped", "the upstream has no containers")
    return {}


COPIED: Final = ("stream",)
RENAMED: Final[Mapping[str, str]] = {}
"""None: the only new name, that of ``max_tokens``, depends on the profile."""

BUILT: Final[Mapping[str, Builder]] = {
    "model": _model,
    "output_config": _output_config,
    "output_format": _output_config,
    "messages": _messages,
    "system": _messages,
    "cache_control": _messages,
    "max_tokens": _max_tokens,
    "stop_sequences": _stop_sequences,
    "temperature": _sampling,
    "top_p": _sampling,
    "top_k": _sampling,
    "tools": build_tools,
    "tool_choice": build_tools,
    "thinking": reasoning_fields,
    "metadata": identity,
    "service_tier": tier,
    "speed": tier,
    "context_management": _context_management,
    "container": _container,
}

BUILDERS: Final = in_order(
    BUILT,
    {
        _model: ("messages",),  # every request has them: it need not name a model
        build_tools: ("messages",),  # which may add tools
        reasoning_fields: ("output_config",),
        identity: ("messages",),  # a header may name the session
    },
)

DROPPED: Final[Mapping[str, str]] = {
    "betas": "a header, read by the gateway",
    "diagnostics": "the upstream reports no cache diagnostics",
    "fallback_credit_token": "the gateway has its own fallbacks",
    "fallbacks": "the gateway has its own fallbacks",
    "user_profile_id": "a header of another provider",
    "workspace_id": "a header of another provider",
}

REFUSED: Final[Mapping[str, str]] = {
    "billing_policy": "nobody else can be billed here",
    "compaction": "the upstream summarises no conversations",
    "inference_geo": "the upstream is not set up for that region (`inference_geos`)",
    "mcp_servers": "the upstream connects to no MCP servers",
    "thread": "message threads are not kept here",
}

CARRIED: Final = frozenset({*COPIED, *RENAMED, *BUILT})

HARMLESS: Final = frozenset({"betas", "diagnostics", "fallbacks", "fallback_credit_token"})
"""Dropped without loss: strict mode does not refuse them."""


def build_request(request: MessagesRequest, target: Target) -> UpstreamRequest:
    """The body to POST, notes of what was bent, and what the answer's half must know.

    Raises BadRequest for what this dialect or the target's profile cannot serve.
    """
    draft = Draft(request, target)
    if not request.keys() <= CARRIED:
        turn_away(draft, REFUSED, DROPPED, HARMLESS)
    body = build_fields(draft, BUILDERS)
    if draft.effort is not None and ASKED_BY.isdisjoint(request):
        body |= reasoning_fields(draft)
    note_unsent(draft, body["messages"], system_messages=False, long_marks=False)
    for name in COPIED:
        if request.get(name):
            body[name] = request[name]
    if "stream" in body and target.profile.stream_options:
        body["stream_options"] = {"include_usage": True}
    if target.profile.prefill and body["messages"][-1]["role"] == "assistant":
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    known = answered_here(draft, NOTHING) if request.get("max_tokens") == 0 else None
    return UpstreamRequest(
        body=body,
        notes=tuple(draft.notes),
        answer=answer_context(draft),
        known_answer=known,
        origins=tuple(draft.origins),
    )


def _reasoning_is_off(draft: Draft) -> bool:
    return reasoning_fields(draft).get("reasoning_effort") == "none"
