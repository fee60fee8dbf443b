"""Code that the request builders of both OpenAI APIs share."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.anthropic.request_validation import SAMPLING
from translator.anthropic.validators import UNSET
from translator.capabilities import Effort, Profile
from translator.dialect import (
    NO_FIELDS,
    AnswerForm,
    Origin,
    ResponseContext,
    TranslationTarget,
    UpstreamRequest,
)
from translator.errors import BadRequest
from translator.notes import Fate, Note
from translator.stream.tool_arguments import compact_json, parse_arguments

from .id_mapping import record_name
from .reasoning_effort import choose_effort, end_of_last_user_text, thinking_visibility
from .session_id import session_id_in

UNSET_PARAMETER: Final = ("ignored", "-1 is some clients' value for a parameter that is not set")

SYSTEM: Final = "system"

RECORD_USED: Final = (
    "repaired",
    "ids, signatures or reasoning of earlier calls come from the session's record",
)
RECORD_GONE: Final = (
    "dropped",
    "the session's record no longer has the id, signature or reasoning of an earlier call",
)


RAW_INPUT: Final = "_raw"
"""The key for the text of arguments that cannot be repaired."""
REPAIRED: Final = ("repaired", "broken arguments of an earlier call are sent as an object")


def object_arguments(value: Any) -> dict[str, Any]:
    """Return the ``input`` of a call as an object; the same object if it is one.

    Clients get arguments that are not valid JSON as a raw string, and send the string back; other
    clients send null, a list or a number. llama.cpp, vLLM and chat templates parse the arguments of
    earlier calls, and Anthropic requires an object: each of them would refuse every later request
    of the session (ggml-org/llama.cpp#25510, MoonshotAI/kimi-cli#2165).
    """
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    if not isinstance(value, str):
        return {"value": value}
    parsed, _ = parse_arguments(value)
    return parsed if isinstance(parsed, dict) else {RAW_INPUT: value}


class RequestBuilder:
    """The state of one request translation: the request, and data that field builders collect."""

    def __init__(self, request: MessagesRequest, target: TranslationTarget) -> None:
        self.request = request
        self.target = target
        # a separate attribute, because nearly every block reads the profile
        self.profile: Profile = target.profile
        # This is an ordered set, because several blocks may cause the same note.
        self.notes: dict[Note, None] = {}
        self.tool_names: dict[str, str] = {}  # upstream's tool name -> client's, where they differ
        self.optional_properties: dict[str, frozenset[str]] = {}
        self.answer: AnswerForm | None = None  # how a structured output is changed back
        self._places: dict[int, tuple[Any, str]] = {}  # by id, beside the object itself
        # The effort that a message sets, with its path.
        self.effort: tuple[Effort, str] | None = None
        self.include: list[str] = []  # Responses API only: the ``include`` field
        self.system_additions: list[str] = []  # Chat Completions only: texts for the system message

    def add_note(self, path: str, fate: Fate, reason: str) -> None:
        self.notes[Note(path, fate, reason)] = None

    def add_notes(self, notes: Iterable[Note]) -> None:
        self.notes |= dict.fromkeys(notes)

    def choose_effort(self) -> Effort | None:
        """Return the reasoning effort to request, with notes (see ``reasoning_effort``)."""
        effort, notes = choose_effort(self.request, self.profile, self.effort)
        self.add_notes(notes)
        return effort

    def arguments_json(self, value: Any, path: str) -> str:
        """Return the ``input`` of a call as JSON text; ``path`` is the path of its block."""
        if type(value) is dict:
            return compact_json(value)
        self.add_note(f"{path}.input", *REPAIRED)
        return compact_json(object_arguments(value))

    def place(self, made: Any, path: str) -> None:
        """Remember from which part of the request an entry, part or call of the body was made.

        ``path`` is that of a message, or of a block and ends with the block's type.
        """
        self._places[id(made)] = (made, path)

    def place_of(self, made: Any) -> str:
        """Return the path given to ``place``; "" for an object that was not placed."""
        # The object is kept, because another one could get the id of an object that is gone.
        return self._places.get(id(made), (None, ""))[1]

    def origins(self, history: Sequence[dict[str, Any]]) -> tuple[Origin, ...]:
        """Return the origins of the entries of the upstream's history."""
        place_of = self.place_of
        found: list[Origin] = []
        for entry in history:
            parts = entry.get("content")
            if parts.__class__ is not list:
                parts = entry.get("output")
            found.append(
                Origin(
                    place_of(entry),
                    tuple(map(place_of, parts)) if parts.__class__ is list else (),
                    tuple(map(place_of, entry["tool_calls"])) if "tool_calls" in entry else (),
                )
            )
        return tuple(found)

    def note_recorded_call(self, call_id: str) -> None:
        """Add a note if the session's record has an entry for this call, also an expired one."""
        recorded, name = self.target.recorded_calls, record_name(call_id)
        if recorded and name in recorded:
            self.add_note("messages", *(RECORD_USED if recorded[name] else RECORD_GONE))

    # Values for the whole request, which are computed once instead of for each block.

    @cached_property
    def last_user_message(self) -> int:
        """Return the index of the last user message; -1 if there is none."""
        messages = self.request["messages"]
        numbers = range(len(messages) - 1, -1, -1)
        return next((number for number in numbers if messages[number]["role"] == "user"), -1)

    @cached_property
    def effort_end(self) -> int:
        """Return the index of the message before which message efforts apply to the response."""
        return end_of_last_user_text(self.request["messages"])

    @cached_property
    def mcp_server_names(self) -> frozenset[str]:
        return frozenset(server["name"] for server in self.request.get("mcp_servers") or ())


FieldBuilder = Callable[[RequestBuilder], dict[str, Any]]
FieldBuilders = tuple[tuple[FieldBuilder, tuple[str, ...]], ...]


def ordered_builders(
    field_builders: Mapping[str, FieldBuilder],
    build_tools: FieldBuilder,
    build_reasoning: FieldBuilder,
) -> FieldBuilders:
    """Return each field builder once, in table order, with the fields that trigger it."""
    # Fields that a builder reads besides those of the table. Every request has messages, so what
    # they trigger is always called: the model may be missing, a header may set the session id, and
    # messages may add tools in mid-conversation.
    fields: dict[FieldBuilder, tuple[str, ...]] = {
        model_field: ("messages",),
        build_tools: ("messages",),
        build_reasoning: ("output_config",),
        identity_fields: ("messages",),
    }
    for name, build in field_builders.items():
        fields[build] = (*fields.get(build, ()), name)
    return tuple((build, fields[build]) for build in dict.fromkeys(field_builders.values()))


def build_fields(builder: RequestBuilder, builders: FieldBuilders) -> dict[str, Any]:
    """Call the builders whose fields the request has; return the upstream fields they build."""
    request = builder.request
    body: dict[str, Any] = {}
    for build, names in builders:
        for name in names:
            if name in request:
                body |= build(builder)
                break
    return body


def effective_context_edits(request: MessagesRequest) -> list[tuple[int, dict[str, Any]]]:
    """Return the edits of ``context_management`` that change the context, with their indices.

    Claude Code sends an edit with ``keep: all``, which changes nothing, in each request.
    """
    edits = (request.get("context_management") or {}).get("edits") or []
    return [
        (number, edit)
        for number, edit in enumerate(edits)
        if edit.get("keep") != "all" or not str(edit.get("type")).startswith("clear_thinking_")
    ]


def identity_fields(builder: RequestBuilder) -> dict[str, Any]:
    """Return the fields with the hashed user id and session id.

    The hashed session id is sent as ``prompt_cache_key``.
    """
    if "metadata" not in builder.request and not builder.target.session:
        return {}
    user = (builder.request.get("metadata") or {}).get("user_id") or ""
    profile = builder.profile
    fields: dict[str, Any] = {}
    if user and profile.safety_identifier:
        fields["safety_identifier"] = _hash(user)
    elif user and profile.user_field:
        fields["user"] = _hash(user)
    session = builder.target.session or session_id_in(builder.request.get("metadata"))
    if session and profile.prompt_cache_key:
        fields["prompt_cache_key"] = _hash(session)
    if user and fields:
        builder.add_note("metadata.user_id", "renamed", "sent as a hash")
    elif user:
        builder.add_note("metadata.user_id", "ignored", "this upstream does not accept a user id")
    return fields


def model_field(builder: RequestBuilder) -> dict[str, Any]:
    return {"model": builder.target.model or builder.request["model"]}


def sampling_fields(builder: RequestBuilder, *, top_k: bool) -> dict[str, Any]:
    """Return those of temperature, top_p and top_k that the server accepts while it reasons."""
    request = builder.request
    parameters = {name: request[name] for name in SAMPLING if request.get(name) is not None}
    for name in [name for name, value in parameters.items() if value == UNSET]:
        builder.add_note(name, *UNSET_PARAMETER)
        del parameters[name]
    if "top_k" in parameters and not top_k:
        builder.add_note("top_k", "dropped", "the upstream has no equivalent")
        del parameters["top_k"]
    if builder.profile.sampling_with_reasoning or not parameters:
        return parameters
    if choose_effort(request, builder.profile, builder.effort)[0] == "none":
        return parameters
    for name in parameters:
        builder.add_note(name, "dropped", "reasoning models do not accept sampling parameters")
    return {}


def note_stop_sequences(builder: RequestBuilder) -> bool:
    """Note that the gateway searches the response for stop sequences; return whether there are any.

    OpenAI's APIs do not report which sequence matched.
    """
    if builder.request.get("stop_sequences"):
        builder.add_note("stop_sequences", "emulated", "found in the response by the gateway")
        return True
    return False


def requested_format(builder: RequestBuilder) -> dict[str, Any] | None:
    """Return ``output_config.format``, or the older ``output_format``; None without either."""
    config = builder.request.get("output_config") or {}
    if config.get("task_budget"):
        builder.add_note("output_config.task_budget", "ignored", "a hint for another provider")
    return config.get("format") or builder.request.get("output_format") or None


def drop_container(builder: RequestBuilder, reason: str) -> dict[str, Any]:
    """Return no field: OpenAI's containers are another provider's, and there are no skills."""
    container = builder.request.get("container")
    if isinstance(container, dict) and container.get("skills"):
        raise BadRequest("container.skills", "the upstream does not run skills")
    if container:
        builder.add_note("container", "dropped", reason)
    return {}


def service_tier_fields(builder: RequestBuilder) -> dict[str, Any]:
    tier, speed = builder.request.get("service_tier"), builder.request.get("speed")
    if not builder.profile.service_tier:
        if tier:
            builder.add_note("service_tier", "ignored", "this upstream has no service tiers")
        if speed == "fast":
            builder.add_note("speed", "dropped", "this upstream has no fast tier")
        return {}
    if speed == "fast":
        return {"service_tier": "fast"}
    return {"service_tier": "default" if tier == "standard_only" else "auto"} if tier else {}


MAX_STOP_SEQUENCES: Final = 64
MAX_STOP_CHARACTERS: Final = 4_096
"""Maximum characters of all stop sequences, since all text is searched for each sequence."""


REPORTED_FIELDS: Final = frozenset({"context_management", "speed"})
"""Fields whose effect the response reports, if the request has them: context edits, speed."""


def upstream_request(
    builder: RequestBuilder,
    body: dict[str, Any],
    history: Sequence[dict[str, Any]],
    local_response: dict[str, Any] | None,
    **context: Any,
) -> UpstreamRequest:
    """Return the translated request, with what the translation of its response needs.

    ``local_response`` is the response to a request that only warms the prompt cache, if the
    upstream cannot do that; ``context`` are further fields of the response's context.
    """
    request, target = builder.request, builder.target
    if local_response is not None:
        builder.add_note(
            "max_tokens", "emulated", "answered by the gateway: the upstream cannot warm a cache"
        )
    tools = request.get("tools")
    call_ids = frozenset(
        block["id"]
        for message in request["messages"]
        if message["role"] == "assistant" and not isinstance(message["content"], str)
        for block in message["content"]
        if block["type"] == "tool_use"
    )
    if target.recorded_calls:
        # A new call must not have the id of a recorded one, or it would get the entry of that one.
        call_ids |= target.recorded_calls.keys()
        target = replace(target, recorded_calls={})
    reported = {name for name in REPORTED_FIELDS if request.get(name)}
    if request.get("speed") != "fast":
        reported.discard("speed")
    sequences = tuple(request.get("stop_sequences") or ())
    if len(sequences) > MAX_STOP_SEQUENCES or sum(map(len, sequences)) > MAX_STOP_CHARACTERS:
        raise BadRequest(
            "stop_sequences",
            f"this route takes at most {MAX_STOP_SEQUENCES} sequences"
            f" of {MAX_STOP_CHARACTERS} characters in all",
        )
    response_context = ResponseContext(
        model=request["model"],
        target=target,
        tool_names=builder.tool_names,
        declared_tools=frozenset(t["name"] for t in tools if "name" in t) if tools else NO_FIELDS,
        optional_properties=builder.optional_properties,
        answer=builder.answer,
        stop_sequences=sequences,
        thinking=thinking_visibility(request) if "thinking" in request else "hidden",
        single_tool_call=bool((request.get("tool_choice") or {}).get("disable_parallel_tool_use")),
        call_ids=call_ids or NO_FIELDS,
        max_tokens=request.get("max_tokens"),
        reported_fields=frozenset(reported) if reported else NO_FIELDS,
        **context,
    )
    return UpstreamRequest(
        body=body,
        notes=tuple(builder.notes),
        response_context=response_context,
        local_response=local_response,
        origins=builder.origins(history),
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
