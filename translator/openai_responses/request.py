"""One Anthropic request -> one Responses body, as a page of tables.

Every field of a request has exactly one fate: COPIED, RENAMED, BUILT, DROPPED or REFUSED.
Source: mapping.md 1.2.
"""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic.types import MessagesRequest
from translator.dialect import Target, UpstreamRequest
from translator.draft import (
    SYSTEM,
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
from translator.render import system_blocks
from translator.schemas import normalise, strict
from translator.thinking import ASKED_BY, effort_of, thinking_shown
from translator.unsent import note_unsent

from .input_items import build_input, limit_breakpoints
from .parts import PARTS
from .tools import build_tools
from .types import InputItem

MIN_OUTPUT_TOKENS: Final = 16  # below, OpenAI answers 400; clients probe with 1

NOTHING: Final[dict[str, Any]] = {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [],
    "usage": {"input_tokens": 0, "output_tokens": 0},
}
"""The answer to a request for no tokens at all."""

OUTPUT_NAME: Final = "structured_output"  # the upstream demands one, Anthropic has none


SAMPLING: Final = ("temperature", "top_p", "top_k")


def _model(draft: Draft) -> dict[str, Any]:
    return {"model": draft.target.model or draft.request["model"]}


def _conversation(draft: Draft) -> dict[str, Any]:
    """``input``, and ``instructions`` where the system prompt needs no breakpoints of its own."""
    items = build_input(draft)
    if not items:
        raise BadRequest("messages", "text content blocks must be non-empty")
    blocks, notes = system_blocks(draft.request)
    for note in notes:
        draft.note(note.path, note.fate, note.reason)
    if draft.profile.cache_breakpoints:
        limit_breakpoints(items)
    if not [block for block in blocks if block.get("cache_control")]:
        text = "\n\n".join([block["text"] for block in blocks])
        return {"instructions": text, "input": items} if text else {"input": items}
    parts = [part for block in blocks for part in PARTS.of_block(block, "system", draft)]
    system: InputItem = {"type": "message", "role": "developer", "content": parts}
    items.insert(0, system)
    draft.origins.insert(0, SYSTEM)
    if draft.profile.cache_breakpoints:
        limit_breakpoints(items)
    return {"input": items}


def _max_tokens(draft: Draft) -> dict[str, Any]:
    wanted = draft.request.get("max_tokens")
    if wanted is None:  # a request to count tokens may say so
        return {}
    if wanted == 0 and draft.profile.prewarm:
        draft.note("max_tokens", "emulated", "the upstream warms its cache and answers nothing")
        return {"prompt_cache_options": {"prewarm": True}}
    if 0 < wanted < MIN_OUTPUT_TOKENS:
        draft.note("max_tokens", "clamped", f"this upstream takes no less than {MIN_OUTPUT_TOKENS}")
    return {"max_output_tokens": max(wanted, MIN_OUTPUT_TOKENS)}


def _sampling(draft: Draft) -> dict[str, Any]:
    """Temperature and top_p, where the server takes them beside its reasoning."""
    request = draft.request
    given = {n: request[n] for n in SAMPLING if request.get(n) is not None}
    if not given:
        return {}
    if given.pop("top_k", None) is not None:
        draft.note("top_k", "dropped", "no equivalent; the answer is still an answer without it")
    effort, _ = effort_of(draft.request, draft.profile, draft.effort)
    if draft.profile.sampling_with_reasoning or effort == "none":
        return given
    for name in given:
        draft.note(name, "dropped", "reasoning models take no sampling parameters")
    return {}


def _stop_sequences(draft: Draft) -> dict[str, Any]:
    if draft.request.get("stop_sequences"):
        draft.note("stop_sequences", "emulated", "found in the answer by the gateway")
    return {}


def _reasoning(draft: Draft) -> dict[str, Any]:
    """``reasoning`` (mapping.md 1.9); a summary only where somebody wants to read it."""
    effort, notes = effort_of(draft.request, draft.profile, draft.effort)
    for note in notes:
        draft.note(note.path, note.fate, note.reason)
    reasoning: dict[str, Any] = {"effort": effort} if effort is not None else {}
    if thinking_shown(draft.request) == "shown" and draft.profile.reasoning_summary:
        reasoning["summary"] = "auto"
    return {"reasoning": reasoning} if reasoning else {}


def _output_config(draft: Draft) -> dict[str, Any]:
    config = draft.request.get("output_config") or {}
    if config.get("task_budget"):
        draft.note("output_config.task_budget", "ignored", "a hint for another provider's agent")
    demanded = config.get("format") or draft.request.get("output_format")
    if not demanded:
        return {}
    if not draft.profile.json_schema:
        draft.note("output_config.format", "dropped", "this upstream takes no schema of the output")
        return {}
    schema = demanded.get("schema") or {}
    made = strict(schema) if draft.profile.strict_schemas else None
    # Optional properties would come back as nulls, which the client's schema forbids.
    is_strict = made is not None and not made.optional
    wanted = {
        "type": "json_schema",
        "name": OUTPUT_NAME,
        "schema": made.schema if made is not None and is_strict else normalise(schema),
        "strict": is_strict,
    }
    return {"text": {"format": wanted}}


def _context_management(draft: Draft) -> dict[str, Any]:
    """Compaction, where the upstream does it; the other edits only save tokens."""
    fields: dict[str, Any] = {}
    for number, edit in context_edits(draft.request):
        path = f"context_management.edits.{number}"
        if not str(edit.get("type")).startswith("compact_"):
            draft.note(path, "dropped", "the history is sent as the client sent it")
        elif not draft.profile.compaction:
            draft.note(path, "dropped", "the upstream compacts no conversations")
        else:
            entry: dict[str, Any] = {"type": "compaction"}
            if (edit.get("trigger") or {}).get("type") == "input_tokens":
                entry["compact_threshold"] = edit["trigger"]["value"]
            fields = {"context_management": [entry]}
    return fields


def _container(draft: Draft) -> dict[str, Any]:
    container = draft.request.get("container")
    if not container:
        return {}
    if isinstance(container, dict) and container.get("skills"):
        raise BadRequest("container.skills", "the upstream runs no skills")
    draft.note("container", "dropped", "the container is one of another provider")
    return {}


COPIED: Final = ("stream",)
RENAMED: Final[Mapping[str, str]] = {}
"""None: the only new name is that of ``max_tokens``, which has a lower limit, too."""

BUILT: Final[Mapping[str, Builder]] = {
    "model": _model,
    "system": _conversation,
    "messages": _conversation,
    "cache_control": _conversation,
    "max_tokens": _max_tokens,
    "stop_sequences": _stop_sequences,
    "temperature": _sampling,
    "top_p": _sampling,
    "top_k": _sampling,
    "tools": build_tools,
    "tool_choice": build_tools,
    "mcp_servers": build_tools,
    "thinking": _reasoning,
    "output_config": _output_config,
    "output_format": _output_config,
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
        _reasoning: ("output_config",),
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
    "compaction": "the upstream summarises no conversations on demand",
    "inference_geo": "the upstream is not set up for that region (`inference_geos`)",
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
    # store: OpenAI keeps answers by default, which no client of ours asked for.
    body = {"store": False, **build_fields(draft, BUILDERS)}
    if draft.effort is not None and ASKED_BY.isdisjoint(request):
        body |= _reasoning(draft)
    note_unsent(draft, body["input"])
    for name in COPIED:
        if request.get(name):
            body[name] = request[name]
    if body.get("stream") and target.profile.stream_obfuscation:
        body["stream_options"] = {"include_obfuscation": False}
    if target.profile.encrypted_reasoning:
        draft.include.insert(0, "reasoning.encrypted_content")
    if draft.include:
        body["include"] = list(dict.fromkeys(draft.include))
    known = None
    if request.get("max_tokens") == 0 and not target.profile.prewarm:
        known = answered_here(draft, NOTHING)
    return UpstreamRequest(
        body=body,
        notes=tuple(draft.notes),
        answer=answer_context(draft, compacts="context_management" in body),
        known_answer=known,
        origins=tuple(draft.origins),
    )
