"""Build the Chat Completions body from an Anthropic request, by tables of fields.

Each request field is in exactly one table: COPIED, RENAMED, BUILT, DROPPED or REFUSED. Source:
docs/mapping.md.

Structured outputs: ``output_config.format`` -> ``response_format``.
"""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.dialect import TranslationTarget, UpstreamRequest
from translator.errors import BadRequest
from translator.request.builder import (
    FieldBuilder,
    RequestBuilder,
    build_fields,
    build_response_context,
    effective_context_edits,
    identity_fields,
    local_response,
    ordered_builders,
    sampling_parameters,
    service_tier_fields,
)
from translator.request.output_schema import output_schema, requested_format
from translator.request.reasoning_effort import EFFORT_FIELDS
from translator.request.unsent_fields import note_unsent_fields, reject_fields
from translator.stream.tool_arguments import compact_json

from .messages import build_messages
from .reasoning import reasoning_fields
from .tools import build_tools

# OpenAI requires a name, which Anthropic's API does not have.
SCHEMA_NAME: Final = "structured_output"


def response_format(builder: RequestBuilder) -> dict[str, Any]:
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
    json_schema: dict[str, Any] = {"name": SCHEMA_NAME, "schema": schema}
    if builder.profile.strict_schemas:
        json_schema["strict"] = is_strict
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


EMPTY_RESPONSE: Final[dict[str, Any]] = {
    "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 0, "completion_tokens": 0},
}
"""The upstream response that is assumed for ``max_tokens: 0``, without sending a request."""


def _model(builder: RequestBuilder) -> dict[str, Any]:
    return {"model": builder.target.model or builder.request["model"]}


def _messages(builder: RequestBuilder) -> dict[str, Any]:
    return {"messages": build_messages(builder)}


def _max_tokens(builder: RequestBuilder) -> dict[str, Any]:
    requested = builder.request["max_tokens"]
    if requested is None:  # ``max_tokens`` is optional in requests to count tokens
        return {}
    return {builder.profile.max_tokens_field: requested or 1}


def _sampling(builder: RequestBuilder) -> dict[str, Any]:
    """Return those of temperature, top_p and top_k that the server accepts."""
    parameters = sampling_parameters(builder)
    if "top_k" in parameters and not builder.profile.top_k:
        builder.add_note("top_k", "dropped", "the upstream has no equivalent")
        del parameters["top_k"]
    if builder.profile.sampling_with_reasoning or _reasoning_is_off(builder):
        return parameters
    for name in parameters:
        builder.add_note(name, "dropped", "reasoning models do not accept sampling parameters")
    return {}


def _stop_sequences(builder: RequestBuilder) -> dict[str, Any]:
    """Return no stop sequences: the gateway searches for them in the response itself.

    ``finish_reason: stop`` does not report which sequence matched. A server that can is asked for
    token counts in each chunk, because the gateway does not read the response to its end.
    """
    if builder.request.get("stop_sequences"):
        builder.add_note("stop_sequences", "emulated", "found in the response by the gateway")
        if builder.profile.timings_per_token:
            return {"timings_per_token": True}
    return {}


def _output_config(builder: RequestBuilder) -> dict[str, Any]:
    if (builder.request.get("output_config") or {}).get("task_budget"):
        builder.add_note("output_config.task_budget", "ignored", "a hint for another provider")
    return response_format(builder)


def _context_management(builder: RequestBuilder) -> dict[str, Any]:
    if effective_context_edits(builder.request):
        builder.add_note("context_management", "dropped", "the upstream does not edit the context")
    return {}


def _container(builder: RequestBuilder) -> dict[str, Any]:
    container = builder.request.get("container")
    if not container:
        return {}
    if isinstance(container, dict) and container.get("skills"):
        raise BadRequest("container.skills", "the upstream does not run skills")
    builder.add_note("container", "dropped", "the upstream has no containers")
    return {}


COPIED: Final = ("stream",)
RENAMED: Final[Mapping[str, str]] = {}
"""This table is empty, because the upstream's name for ``max_tokens`` depends on the profile."""

BUILT: Final[Mapping[str, FieldBuilder]] = {
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
    "metadata": identity_fields,
    "service_tier": service_tier_fields,
    "speed": service_tier_fields,
    "context_management": _context_management,
    "container": _container,
}

BUILDERS: Final = ordered_builders(
    BUILT,
    {
        # Every request has messages, so this is always called; the model may be missing.
        _model: ("messages",),
        build_tools: ("messages",),  # messages may add tools in mid-conversation
        reasoning_fields: ("output_config",),
        # Every request has messages, so this is always called; a header may set the session id.
        identity_fields: ("messages",),
    },
)

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
    response = local_response(builder, EMPTY_RESPONSE) if request.get("max_tokens") == 0 else None
    return UpstreamRequest(
        body=body,
        notes=tuple(builder.notes),
        response_context=build_response_context(builder),
        local_response=response,
        origins=builder.origins(body["messages"]),
    )


def _reasoning_is_off(builder: RequestBuilder) -> bool:
    return reasoning_fields(builder).get("reasoning_effort") == "none"
