"""Build the Chat Completions body from an Anthropic request, by tables of fields.

Each request field is in exactly one table: COPIED, RENAMED, BUILT, DROPPED or REFUSED. Source:
docs/mapping.md.
"""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.dialect import TranslationTarget, UpstreamRequest
from translator.request.builder import (
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
from translator.request.reasoning_effort import EFFORT_FIELDS
from translator.request.unsent_fields import note_unsent_fields, reject_fields
from translator.stream.tool_arguments import compact_json

from .messages import build_messages
from .reasoning import reasoning_fields
from .tools import build_tools

EMPTY_RESPONSE: Final[dict[str, Any]] = {
    "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 0, "completion_tokens": 0},
}
"""The upstream response that is assumed for ``max_tokens: 0``, without sending a request."""


def _messages(builder: RequestBuilder) -> dict[str, Any]:
    return {"messages": build_messages(builder)}


def _max_tokens(builder: RequestBuilder) -> dict[str, Any]:
    requested = builder.request["max_tokens"]
    if requested is None:  # ``max_tokens`` is optional in requests to count tokens
        return {}
    return {builder.profile.max_tokens_field: requested or 1}


def _sampling(builder: RequestBuilder) -> dict[str, Any]:
    return sampling_fields(builder, top_k=builder.profile.top_k)


def _stop_sequences(builder: RequestBuilder) -> dict[str, Any]:
    """Ask for token counts in each chunk: the gateway ends the response at a stop sequence."""
    asks = note_stop_sequences(builder) and builder.profile.timings_per_token
    return {"timings_per_token": True} if asks else {}


def _output_config(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``response_format`` for the requested JSON schema, if there is one."""
    output_format = requested_format(builder)
    if not output_format:
        return {}
    schema, is_strict = output_schema(output_format, builder)
    if not builder.profile.json_schema:
        builder.add_note(
            "output_config.format", "emulated", "the schema is sent in the system prompt"
        )
        builder.system_additions.append(
            f"Answer with one JSON object that follows this schema: {compact_json(schema)}"
        )
        return {"response_format": {"type": "json_object"}}
    json_schema: dict[str, Any] = {"name": OUTPUT_NAME, "schema": schema}
    if builder.profile.strict_schemas:
        json_schema["strict"] = is_strict
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def _context_management(builder: RequestBuilder) -> dict[str, Any]:
    if effective_context_edits(builder.request):
        builder.add_note("context_management", "dropped", "the upstream does not edit the context")
    return {}


def _container(builder: RequestBuilder) -> dict[str, Any]:
    return drop_container(builder, "the upstream has no containers")


COPIED: Final = ("stream",)
RENAMED: Final[Mapping[str, str]] = {}
"""This table is empty, because the upstream's name for ``max_tokens`` depends on the profile."""

BUILT: Final[Mapping[str, FieldBuilder]] = {
    "model": model_field,
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
    "metadata": identity_fields,
    "service_tier": service_tier_fields,
    "speed": service_tier_fields,
    "context_management": _context_management,
    "container": _container,
}

BUILDERS: Final = ordered_builders(BUILT, build_tools, reasoning_fields)

REFUSED: Final[Mapping[str, str]] = {
    "billing_policy": "the upstream has no billing policies",
    "compaction": "the upstream cannot summarize conversations",
    "inference_geo": "the upstream is not set up for that region (`inference_geos`)",
    "mcp_servers": "the upstream does not connect to MCP servers",
    "safeguards": "the upstream does not run this check; run it yourself",
    "thread": "message threads are not supported",
}

TRANSLATED_FIELDS: Final = frozenset({*COPIED, *RENAMED, *BUILT})


def build_request(request: MessagesRequest, target: TranslationTarget) -> UpstreamRequest:
    """Return the upstream body, its notes and the context for translating the response.

    Raises BadRequest for request content that Chat Completions or the target's profile does not
    support.
    """
    builder = RequestBuilder(request, target)
    if not request.keys() <= TRANSLATED_FIELDS:
        reject_fields(builder, REFUSED)
    body = build_fields(builder, BUILDERS)
    if builder.effort is not None and EFFORT_FIELDS.isdisjoint(request):
        body |= reasoning_fields(builder)
    note_unsent_fields(builder, body["messages"], system_messages=False, long_marks=False)
    for name in COPIED:
        if request.get(name):
            body[name] = request[name]
    if "stream" in body and target.profile.stream_options:
        body["stream_options"] = {"include_usage": True}
    if target.profile.prefill and body["messages"][-1]["role"] == "assistant":
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    response = EMPTY_RESPONSE if request.get("max_tokens") == 0 else None
    return upstream_request(builder, body, body["messages"], response)
