"""Build the Responses API body from an Anthropic request, by tables of fields.

Each request field is in exactly one table: COPIED, RENAMED, BUILT, DROPPED or REFUSED. Source:
docs/mapping.md.
"""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.dialect import TranslationTarget, UpstreamRequest
from translator.errors import BadRequest
from translator.request.builder import (
    SYSTEM,
    FieldBuilder,
    RequestBuilder,
    build_fields,
    drop_container,
    effective_context_edits,
    identity_fields,
    model_field,
    note_stop_sequences,
    ordered_builders,
    requested_format,
    sampling_fields,
    service_tier_fields,
    upstream_request,
)
from translator.request.json_schema import OUTPUT_NAME, output_schema
from translator.request.reasoning_effort import EFFORT_FIELDS, thinking_visibility
from translator.request.text_fallbacks import system_blocks
from translator.request.unsent_fields import note_unsent_fields, reject_fields

from .input_items import PART_BUILDER, build_input, limit_breakpoints
from .tools import build_tools

EMPTY_RESPONSE: Final[dict[str, Any]] = {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [],
    "usage": {"input_tokens": 0, "output_tokens": 0},
}
"""The upstream response that is assumed for ``max_tokens: 0``, without sending a request."""

HOSTED_CALLS: Final = {"code_interpreter": "code_interpreter_call", "mcp": "mcp_call"}
"""Type of a hosted tool -> type of its calls in the response."""
ALL_HOSTED_ITEMS: Final = frozenset(HOSTED_CALLS.values())


def _conversation(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``input``, and ``instructions`` if the system prompt has no cache breakpoints."""
    items = build_input(builder)
    if not items:
        raise BadRequest("messages", "text content blocks must be non-empty")
    blocks, notes = system_blocks(builder.request)
    builder.add_notes(notes)
    if builder.profile.cache_breakpoints:
        limit_breakpoints(items)
    if not any(block.get("cache_control") for block in blocks):
        text = "\n\n".join([block["text"] for block in blocks])
        return {"instructions": text, "input": items} if text else {"input": items}
    parts = [
        part for block in blocks for part in PART_BUILDER.convert_block(block, "system", builder)
    ]
    system = {"type": "message", "role": "developer", "content": parts}
    items.insert(0, system)
    builder.place(system, SYSTEM)
    if builder.profile.cache_breakpoints:
        limit_breakpoints(items)
    return {"input": items}


def _max_tokens(builder: RequestBuilder) -> dict[str, Any]:
    requested = builder.request.get("max_tokens")
    if requested is None:  # ``max_tokens`` is optional in requests to count tokens
        return {}
    if requested == 0 and builder.profile.prewarm:
        builder.add_note(
            "max_tokens", "emulated", "the upstream warms its cache and answers nothing"
        )
        return {"prompt_cache_options": {"prewarm": True}}
    least = builder.profile.min_output_tokens  # some clients send 1 as a test
    if 0 < requested < least:
        builder.add_note("max_tokens", "clamped", f"this upstream requires at least {least}")
    return {"max_output_tokens": max(requested, least, 1)}


def _sampling(builder: RequestBuilder) -> dict[str, Any]:
    return sampling_fields(builder, top_k=False)


def _stop_sequences(builder: RequestBuilder) -> dict[str, Any]:
    note_stop_sequences(builder)
    return {}


def _reasoning(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``reasoning`` (docs/mapping.md), with a summary only if the client shows it."""
    effort = builder.choose_effort()
    reasoning: dict[str, Any] = {"effort": effort} if effort is not None else {}
    if thinking_visibility(builder.request) == "shown" and builder.profile.reasoning_summary:
        reasoning["summary"] = "auto"
    return {"reasoning": reasoning} if reasoning else {}


def _output_config(builder: RequestBuilder) -> dict[str, Any]:
    output_format = requested_format(builder)
    if not output_format:
        return {}
    if not builder.profile.json_schema:
        builder.add_note(
            "output_config.format", "dropped", "this upstream does not accept an output schema"
        )
        return {}
    schema, is_strict = output_schema(output_format, builder)
    text_format = {
        "type": "json_schema",
        "name": OUTPUT_NAME,
        "schema": schema,
        "strict": is_strict,
    }
    return {"text": {"format": text_format}}


def _context_management(builder: RequestBuilder) -> dict[str, Any]:
    """Request compaction if the upstream supports it.

    Other edits are ignored, because they only save tokens.
    """
    fields: dict[str, Any] = {}
    for number, edit in effective_context_edits(builder.request):
        path = f"context_management.edits.{number}"
        if not str(edit.get("type")).startswith("compact_"):
            builder.add_note(path, "dropped", "the history is sent as the client sent it")
        elif not builder.profile.compaction:
            builder.add_note(path, "dropped", "the upstream does not compact conversations")
        else:
            entry: dict[str, Any] = {"type": "compaction"}
            if (edit.get("trigger") or {}).get("type") == "input_tokens":
                entry["compact_threshold"] = edit["trigger"]["value"]
            fields = {"context_management": [entry]}
    return fields


def _container(builder: RequestBuilder) -> dict[str, Any]:
    return drop_container(builder, "the container is another provider's")


COPIED: Final = ("stream",)
RENAMED: Final[Mapping[str, str]] = {}
"""This table is empty: ``max_tokens`` has a minimum at OpenAI, so a function sets it."""

BUILT: Final[Mapping[str, FieldBuilder]] = {
    "model": model_field,
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
    "metadata": identity_fields,
    "service_tier": service_tier_fields,
    "speed": service_tier_fields,
    "context_management": _context_management,
    "container": _container,
}

BUILDERS: Final = ordered_builders(BUILT, build_tools, _reasoning)

REFUSED: Final[Mapping[str, str]] = {
    "billing_policy": "the upstream has no billing policies",
    "compaction": "the upstream cannot summarize conversations on demand",
    "inference_geo": "the upstream is not set up for that region (`inference_geos`)",
    "safeguards": "the upstream does not run this check; run it yourself",
    "thread": "message threads are not supported",
}

TRANSLATED_FIELDS: Final = frozenset({*COPIED, *RENAMED, *BUILT})


def build_request(request: MessagesRequest, target: TranslationTarget) -> UpstreamRequest:
    """Return the upstream body, its notes and the context for translating the response.

    Raises BadRequest for request content that the Responses API or the target's profile does not
    support.
    """
    builder = RequestBuilder(request, target)
    if not request.keys() <= TRANSLATED_FIELDS:
        reject_fields(builder, REFUSED)
    # With ``store`` true, the default, OpenAI would store responses, which no client requested.
    body = {"store": False, **build_fields(builder, BUILDERS)}
    if builder.effort is not None and EFFORT_FIELDS.isdisjoint(request):
        body |= _reasoning(builder)
    note_unsent_fields(builder, body["input"])
    for name in COPIED:
        if request.get(name):
            body[name] = request[name]
    if body.get("stream") and target.profile.stream_obfuscation:
        body["stream_options"] = {"include_obfuscation": False}
    if target.profile.encrypted_reasoning:
        builder.include.insert(0, "reasoning.encrypted_content")
    if builder.include:
        body["include"] = list(dict.fromkeys(builder.include))
    has_response = request.get("max_tokens") == 0 and not target.profile.prewarm
    kinds = {tool.get("type") for tool in body.get("tools") or ()}
    return upstream_request(
        builder,
        body,
        body["input"],
        EMPTY_RESPONSE if has_response else None,
        returns_compaction="context_management" in body,
        unrequested_items=ALL_HOSTED_ITEMS
        if kinds.isdisjoint(HOSTED_CALLS)
        else frozenset(item for kind, item in HOSTED_CALLS.items() if kind not in kinds),
    )
