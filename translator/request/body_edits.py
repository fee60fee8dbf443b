"""The changes of an upstream body that make it acceptable to one model.

An edit has a name and a value, both texts, so that a ``Lesson`` can be stored: "this model takes
no ``omit`` ``reasoning.effort``". The same edit serves the repair of a refused body and, once it
has helped, every later body for that upstream and model. An edit that changes nothing in a body
returns None. Source of the fields: docs/mapping.md 1.2; of the shapes: ``history_shapes``.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from translator.capabilities import EFFORTS
from translator.dialect import Lesson, Origin
from translator.notes import Fate, Note
from translator.stream.tool_arguments import compact_json
from translator.upstream_errors.paths import moved_origins

from .history_shapes import (
    FILE_PARTS,
    IMAGE_PARTS,
    NO_FILE,
    NO_IMAGE,
    OLD_IMAGE,
    count_parts,
    hoist_system_text,
    merge_turns,
    move_system_text,
    reshape_input,
    split_calls,
    without_parts,
    write_calls_as_text,
)

Body = dict[str, Any]

UNSIGNED_CALL: Final = {
    "extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}
}
"""Google's placeholder for calls that the model did not make itself. Gemini 3 refuses a request if
the first call of a step has no signature; the other calls of the step need none. Source: "Thought
signatures" of the Gemini API and of Google Cloud."""
LITELLM_SIGNATURE: Final = base64.b64encode(b"skip_thought_signature_validator").decode()
"""The same in base64, as LiteLLM passes it on from ``provider_specific_fields`` (BerriAI/litellm,
``_get_thought_signature_from_tool``)."""
SIGNED_FIELDS: Final = ("extra_content", "provider_specific_fields", "thought_signature")


@dataclass(frozen=True, slots=True)
class OptionalField:
    """A field that the gateway adds, or whose value it chooses."""

    capability: str
    """The capability with which an operator decides about the field; "" if there is none."""
    path: str  # of the note
    fate: Fate = "ignored"
    wants_words: bool = False
    """The value is the client's own, so only words like "unsupported" make the field dispensable,
    not an error about the value."""


_EFFORT: Final = OptionalField("efforts", "output_config.effort", "dropped", wants_words=True)
_SAMPLING: Final = "sampling_with_reasoning"
FIELDS: Final[Mapping[str, OptionalField]] = {
    "add_generation_prompt": OptionalField("prefill", "messages"),
    "chat_template_kwargs": OptionalField("thinking_switch", "thinking"),
    "continue_final_message": OptionalField("prefill", "messages"),
    "include": OptionalField("encrypted_reasoning", "thinking"),
    "input[].content[].detail": OptionalField("", "messages"),
    "input[].content[].prompt_cache_breakpoint": OptionalField(
        "cache_breakpoints", "cache_control"
    ),
    "input[].output[].detail": OptionalField("", "messages"),
    "input[].output[].prompt_cache_breakpoint": OptionalField("cache_breakpoints", "cache_control"),
    "input[].phase": OptionalField("phase", "messages"),
    "max_tool_calls": OptionalField("", "tools", "dropped"),
    "messages[].content[].image_url.detail": OptionalField("", "messages"),
    "messages[].content[].prompt_cache_breakpoint": OptionalField(
        "cache_breakpoints", "cache_control"
    ),
    "messages[].reasoning": OptionalField("reasoning_field", "messages"),
    "messages[].reasoning_content": OptionalField("reasoning_field", "messages"),
    "messages[].reasoning_details": OptionalField("reasoning_field", "messages"),
    "parallel_tool_calls": OptionalField("parallel_tool_calls", "tool_choice"),
    "prompt_cache_key": OptionalField("prompt_cache_key", "metadata.user_id"),
    "prompt_cache_options": OptionalField("prewarm", "max_tokens"),
    "prompt_cache_retention": OptionalField("", "cache_control"),
    "reasoning": _EFFORT,
    "reasoning.effort": _EFFORT,
    "reasoning.summary": OptionalField("reasoning_summary", "thinking", "dropped"),
    "reasoning_effort": _EFFORT,
    "response_format.json_schema.strict": OptionalField(
        "strict_schemas", "output_config.format", "dropped"
    ),
    "safety_identifier": OptionalField("safety_identifier", "metadata.user_id"),
    "service_tier": OptionalField("service_tier", "service_tier"),
    "stop": OptionalField("", "stop_sequences", wants_words=True),
    "store": OptionalField("", "metadata"),
    "stream_options": OptionalField("stream_options", "stream"),
    "stream_options.include_obfuscation": OptionalField("stream_obfuscation", "stream"),
    "temperature": OptionalField(_SAMPLING, "temperature", "dropped", wants_words=True),
    "text.format.strict": OptionalField("strict_schemas", "output_config.format", "dropped"),
    "text.verbosity": OptionalField("", "output_config"),
    "thinking": OptionalField("thinking_switch", "thinking"),
    "thinking_budget_tokens": OptionalField("budget_field", "thinking.budget_tokens", "dropped"),
    "timings_per_token": OptionalField("timings_per_token", "stream"),
    "tools[].function.strict": OptionalField("strict_schemas", "tools"),
    "tools[].strict": OptionalField("strict_schemas", "tools"),
    "top_k": OptionalField("top_k", "top_k", "dropped", wants_words=True),
    "top_p": OptionalField(_SAMPLING, "top_p", "dropped", wants_words=True),
    "truncation": OptionalField("", "context_management"),
    "user": OptionalField("user_field", "metadata.user_id"),
}
"""Optional fields of both OpenAI APIs by path; ``[]`` stands for every item of a list."""


_LOST: Final = (
    "context_management", "output_config", "output_config.effort", "service_tier", "speed",
    "temperature", "thinking", "tools[].strict", "top_k", "top_p",
)  # fmt: skip
_HINTS: Final = (
    "cache_control", "cache_control.scope", "cache_control.ttl", "diagnostics", "fallbacks",
    "messages[].content[].caller", "messages[].content[].citations", "metadata",
    "output_config.task_budget", "tags", "thinking.display", "tools[].allowed_callers",
    "tools[].defer_loading", "tools[].eager_input_streaming", "tools[].input_examples",
    *(
        f"{owner}.cache_control{part}"
        for owner in ("system[]", "tools[]", "messages[].content[]",
                      "messages[].content[].content[]")
        for part in ("", ".scope", ".ttl")
    ),
)  # fmt: skip
CLIENT_FIELDS: Final[Mapping[str, OptionalField]] = {
    path: OptionalField("", path.replace("[]", ""), "dropped") for path in _LOST
} | {path: OptionalField("", path.replace("[]", "")) for path in _HINTS}
"""Fields of the Messages API that clients such as Claude Code add by themselves, and that a server
may do without. A new server of Anthropic's API knows only some of them: Claude Code's every request
fails there (anthropics/claude-code#21612, decolua/9router#1468, anomalyco/opencode#23193)."""


@dataclass(frozen=True, slots=True)
class Edit:
    """How one edit changes a body; ``note`` is None if it depends on the value."""

    apply: Callable[[Body, str], Body | None]
    note: Note | None
    capability: str = ""
    """The capability with which an operator decides the same; a configured one has precedence."""


def apply_lesson(body: Body, lesson: Lesson) -> tuple[Body, Note] | None:
    """Return the changed body with a note; None if the body needs no change."""
    edit = EDITS.get(lesson.edit)
    changed = edit.apply(body, lesson.value) if edit is not None else None
    if edit is None or changed is None or changed == body:
        return None
    return changed, edit.note or _note(lesson, body)


def apply_lessons(
    body: Body, lessons: Iterable[Lesson], origins: Sequence[Origin] = ()
) -> tuple[Body, list[Note], tuple[Origin, ...]]:
    """Return a body as its model takes it, with notes, and the origins of its history."""
    notes: dict[Note, None] = {}
    for lesson in lessons:
        if (applied := apply_lesson(body, lesson)) is not None:
            changed, note = applied
            origins = moved_origins(body, changed, origins)
            body, notes[note] = changed, None
    return body, [*notes], tuple(origins)


def capability_of(lesson: Lesson) -> str:
    """Return the capability that an operator can set instead; "" if there is none."""
    if lesson.edit in OMITTING and lesson.edit != "omit_client_field":
        return FIELDS[lesson.value].capability if lesson.value in FIELDS else ""
    edit = EDITS.get(lesson.edit)
    return edit.capability if edit is not None else ""


def has_field(body: Body, path: str) -> bool:
    return next(_owners(body, path), None) is not None


def effort_of(body: Body) -> str:
    """Return the effort in a body of either API; "" without one."""
    reasoning = body.get("reasoning")
    effort = (
        reasoning.get("effort") if isinstance(reasoning, dict) else body.get("reasoning_effort")
    )
    return effort if isinstance(effort, str) else ""


def forced_choice(body: Body) -> bool:
    """Return whether the body's tool choice makes the model call a tool."""
    choice = body.get("tool_choice")
    return choice == "required" or isinstance(choice, dict)


def schema_format(body: Body) -> dict[str, Any] | None:
    """Return the JSON schema that the answer must have, with its name; None without one."""
    form = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    if form.get("type") != "json_schema":
        return None
    inner = form.get("json_schema", form)
    return inner if isinstance(inner, dict) else None


def _note(lesson: Lesson, body: Body) -> Note:
    if lesson.edit == "effort":
        return Note("output_config.effort", "clamped", "the model has no such effort: sent lower")
    if lesson.edit == "omit_client_field" and lesson.value in CLIENT_FIELDS:
        known = CLIENT_FIELDS[lesson.value]
        return Note(known.path, known.fate, f"the upstream refused {known.path}: sent without it")
    if lesson.edit in OMITTING and (field := FIELDS.get(lesson.value)) is not None:
        fate = field.fate
        if lesson.value == "service_tier" and body.get("service_tier") == "fast":
            fate = "dropped"
        if lesson.value.startswith("tools[]") and "strict" in lesson.value:
            name = lesson.value.rpartition(".")[2]
            strict = any(owner.get(name) for owner, _ in _owners(body, lesson.value))
            fate = "dropped" if strict else fate
        return Note(field.path, fate, f"the upstream refused {lesson.value}: sent without it")
    count = lesson.value
    if lesson.edit == "max_tools":
        return Note(
            "tools", "dropped", f"the upstream takes {count} tools: sent without the others"
        )
    if lesson.edit == "max_images":
        return Note("messages", "dropped", f"the upstream takes {count} images: the last were sent")
    return Note("tools", "clamped", f"descriptions were cut to the upstream's {count} characters")


def _owners(body: Body, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each object of the body that has the field at ``path``, with the field's name."""
    owners: list[Any] = [body]
    *parents, name = path.split(".")
    for parent in parents:
        found = [
            owner.get(parent.removesuffix("[]")) for owner in owners if isinstance(owner, dict)
        ]
        owners = found
        if parent.endswith("[]"):
            owners = [item for items in found if isinstance(items, list) for item in items]
    for owner in owners:
        if isinstance(owner, dict) and name in owner:
            yield owner, name


def omit_field(body: Body, path: str) -> Body | None:
    """Remove a field wherever it is; an object that is empty then goes as well."""
    return _without(body, path.split(".")) if has_field(body, path) else None


def _without(owner: Any, parts: list[str]) -> Any:
    if not isinstance(owner, dict):
        return owner
    name, *rest = parts
    key = name.removesuffix("[]")
    if key not in owner:
        return owner
    if not rest:
        return {n: value for n, value in owner.items() if n != key}
    inner = owner[key]
    if name.endswith("[]"):
        if not isinstance(inner, list):
            return owner
        return {**owner, key: [_without(item, rest) for item in inner]}
    left = _without(inner, rest)
    return {**owner, key: left} if left else {n: v for n, v in owner.items() if n != key}


def reasoning_is_off(body: Body) -> bool:
    """Return whether the body turns reasoning off; then other rules hold for other fields."""
    thinking, template = body.get("thinking"), body.get("chat_template_kwargs")
    return (
        effort_of(body) == "none"
        or (isinstance(thinking, dict) and thinking.get("type") == "disabled")
        or (isinstance(template, dict) and template.get("enable_thinking") is False)
    )


def _omit_while_reasoning(body: Body, path: str) -> Body | None:
    return None if reasoning_is_off(body) else omit_field(body, path)


def _exclude(body: Body, value: str) -> Body | None:
    included = body.get("include")
    if not isinstance(included, list) or value not in included:
        return None
    rest = [name for name in included if name != value]
    return {**body, "include": rest} if rest else omit_field(body, "include")


def _fit_effort(body: Body, value: str) -> Body | None:
    """Lower the effort: to one of those in ``value``, or below ``!refused``."""
    effort = effort_of(body)
    if effort not in EFFORTS:
        return None
    wanted = EFFORTS.index(effort)
    if value.startswith("!"):
        refused = EFFORTS.index(value[1:]) if value[1:] in EFFORTS else len(EFFORTS)
        if wanted < refused or (effort == "none" and refused):
            return None
        # "none" turns reasoning off: it is no lower effort
        chosen = EFFORTS[refused - 1] if refused > 1 else ""
    else:
        allowed = [name for name in EFFORTS if name in value.split()]
        if effort in allowed:
            return None
        lower = [name for name in allowed if EFFORTS.index(name) <= wanted and name != "none"]
        chosen = lower[-1] if lower else next((n for n in allowed if n != "none"), "")
        chosen = chosen or (allowed[0] if allowed else "")
    if not chosen:
        return omit_field(body, "reasoning_effort") or omit_field(body, "reasoning.effort")
    if "reasoning_effort" in body:
        return {**body, "reasoning_effort": chosen}
    return {**body, "reasoning": {**body["reasoning"], "effort": chosen}}


def _rename_developer(body: Body, _: str) -> Body | None:
    changed = dict(body)
    for name in ("messages", "input"):
        if isinstance(entries := body.get(name), list):
            changed[name] = [
                {**entry, "role": "system"} if entry.get("role") == "developer" else entry
                for entry in entries
            ]
    return changed


def _shape(
    shape: Callable[[Sequence[Body]], list[Body]], *, moves_system: bool = False
) -> Callable[[Body, str], Body | None]:
    """Return an edit of the history; ``moves_system``: it changes the place of system text."""

    def edit(body: Body, _: str) -> Body | None:
        if isinstance(body.get("messages"), list):
            return {**body, "messages": shape(body["messages"])}
        if not isinstance(body.get("input"), list):
            return None
        return (
            reshape_input(body, shape) if moves_system else {**body, "input": shape(body["input"])}
        )

    return edit


def _keep_images(body: Body, value: str) -> Body | None:
    """Keep the last images, ``value`` of them: the oldest matter least."""
    keep = int(value) if value.isdigit() else 0
    changed = dict(body)
    for name in ("messages", "input"):
        if count_parts(body.get(name), IMAGE_PARTS) > keep:
            text = OLD_IMAGE if keep else NO_IMAGE
            changed[name] = without_parts(body[name], IMAGE_PARTS, text, keep)
    return changed


def _omit_files(body: Body, _: str) -> Body | None:
    changed = dict(body)
    for name in ("messages", "input"):
        if count_parts(body.get(name), FILE_PARTS):
            changed[name] = without_parts(body[name], FILE_PARTS, NO_FILE)
    return changed


def _keep_tools(body: Body, value: str) -> Body | None:
    """Keep the first tools, and the one that the request forces."""
    tools, limit = body.get("tools"), int(value) if value.isdigit() else 0
    if not isinstance(tools, list) or not 0 < limit < len(tools):
        return None
    choice = body.get("tool_choice")
    wanted = (choice.get("function") or choice).get("name") if isinstance(choice, dict) else None
    kept, cut = tools[:limit], tools[limit:]
    forced = [tool for tool in cut if (tool.get("function") or tool).get("name") == wanted]
    forced = forced if wanted else []
    return {**body, "tools": [*kept[: limit - len(forced[:1])], *forced[:1]]}


def _cut_descriptions(body: Body, value: str) -> Body | None:
    limit, tools = int(value) if value.isdigit() else 0, body.get("tools")
    if not isinstance(tools, list) or not limit:
        return None
    return {**body, "tools": [_with_short_descriptions(tool, limit) for tool in tools]}


def _with_short_descriptions(value: Any, limit: int) -> Any:
    if isinstance(value, list):
        return [_with_short_descriptions(item, limit) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: f"{inner[: limit - 1]}…"
        if name == "description" and isinstance(inner, str) and len(inner) > limit
        else _with_short_descriptions(inner, limit)
        for name, inner in value.items()
    }


def _choose_freely(body: Body, value: str) -> Body | None:
    """Let the model choose; with the value ``while reasoning``, only if it reasons."""
    if not forced_choice(body) or (value and reasoning_is_off(body)):
        return None
    return {**body, "tool_choice": "auto"}


def _schema_as_prompt(body: Body, value: str) -> Body | None:
    """Move the answer's schema to the system prompt; ``value`` is ``text`` without JSON mode."""
    schema = schema_format(body)
    if schema is None:
        return _omit_json_mode(body) if value == "text" else None
    rules = compact_json(schema.get("schema"))
    text = _SCHEMA_RULE + rules
    json_mode = {"type": "json_object"}
    if "response_format" in body:
        changed = {**body, "response_format": json_mode, "messages": _with_system(body, text)}
    else:
        instructions = "\n\n".join(filter(None, [body.get("instructions"), text]))
        form = {**body["text"], "format": json_mode}
        changed = {**body, "instructions": instructions, "text": form}
    return _omit_json_mode(changed) if value == "text" else changed


def _format_as_prompt(body: Body, _: str) -> Body | None:
    """Move the schema of the answer from a body of the Messages API to its system prompt."""
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else None
    if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        return None
    text = _SCHEMA_RULE + compact_json(form["schema"])
    system = body.get("system") or []
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else [*system]
    return {
        **(omit_field(body, "output_config.format") or body),
        "system": [*blocks, {"type": "text", "text": text}],
    }


_SCHEMA_RULE: Final = "Answer with one JSON object that follows this schema: "


def _omit_json_mode(body: Body) -> Body | None:
    form = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    if form.get("type") != "json_object":
        return None
    return omit_field(body, "response_format" if "response_format" in body else "text.format")


def _with_system(body: Body, text: str) -> list[dict[str, Any]]:
    """Return the messages with a text at the end of the system prompt."""
    first, *rest = body["messages"]
    if first["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, first, *rest]
    content = first.get("content")
    if isinstance(content, list):
        joined: Any = [*content, {"type": "text", "text": text}]
    else:
        joined = f"{content}\n\n{text}"
    return [{**first, "content": joined}, *rest]


def _rename_output_limit(body: Body, value: str) -> Body | None:
    other = "max_tokens" if value == "max_completion_tokens" else "max_completion_tokens"
    if other not in body or value in body:
        return None
    return {value if name == other else name: inner for name, inner in body.items()}


def _disable_reasoning(body: Body, _: str) -> Body | None:
    """Set the effort to "none"; models that reason by default also reject a missing effort."""
    if body.get("reasoning_effort") == "none" or not body.get("tools"):
        return None
    return {**body, "reasoning_effort": "none"}


def _fill_reasoning(body: Body, _: str) -> Body | None:
    """Add " " as reasoning to assistant messages without it: for Moonshot, "" counts as missing."""
    return {
        **body,
        "messages": [
            {**message, "reasoning_content": " "}
            if message.get("role") == "assistant" and not message.get("reasoning_content")
            else message
            for message in body.get("messages") or []
        ],
    }


def _sign_calls(body: Body, _: str) -> Body | None:
    """Mark the first call of each assistant message, if it has no signature of Gemini."""
    if not isinstance(body.get("messages"), list):
        return None
    signed = {
        **UNSIGNED_CALL,
        "provider_specific_fields": {"thought_signature": LITELLM_SIGNATURE},
    }
    return {
        **body,
        "messages": [
            {**message, "tool_calls": [{**signed, **calls[0]}, *calls[1:]]}
            if (calls := message.get("tool_calls"))
            and not any(n in calls[0] for n in SIGNED_FIELDS)
            else message
            for message in body["messages"]
        ],
    }


def _raise_output_limit(body: Body, value: str) -> Body | None:
    sent = body.get("max_output_tokens")
    if not value.isdigit() or type(sent) is not int or sent >= int(value):
        return None
    return {**body, "max_output_tokens": int(value)}


def _lower_output_limit(body: Body, value: str) -> Body | None:
    limit = int(value) if value.isdigit() else 0
    large = [n for n in OUTPUT_LIMITS if type(body.get(n)) is int and body[n] > limit]
    return body | dict.fromkeys(large, limit) if limit and large else None


OUTPUT_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
OMITTING: Final = frozenset({"omit", "omit_while_reasoning", "omit_client_field"})
"""Edits whose value is a path in ``FIELDS``, or in ``CLIENT_FIELDS``."""
_TEMPLATE: Final = "messages", "emulated"
EDITS: Final[Mapping[str, Edit]] = {
    "omit": Edit(omit_field, None),
    "omit_while_reasoning": Edit(_omit_while_reasoning, None),
    "omit_client_field": Edit(omit_field, None),
    "format_as_prompt": Edit(
        _format_as_prompt,
        Note("output_config.format", "emulated", "the schema is sent in the system prompt"),
    ),
    "exclude": Edit(
        _exclude,
        Note("thinking", "ignored", "the upstream does not return encrypted reasoning"),
        "encrypted_reasoning",
    ),
    "effort": Edit(_fit_effort, None, "efforts"),
    "system_for_developer": Edit(
        _rename_developer,
        Note("system", "renamed", "the upstream refused the role developer: sent as system"),
        "developer_role",
    ),
    "images_as_text": Edit(
        _keep_images,
        Note("messages", "dropped", "the model does not accept images: sent without them"),
        "images",
    ),
    "files_as_text": Edit(
        _omit_files,
        Note("messages", "dropped", "the model does not accept files: sent as their text, if any"),
        "files",
    ),
    "max_images": Edit(_keep_images, None),
    "max_tools": Edit(_keep_tools, None, "max_tools"),
    "max_description": Edit(_cut_descriptions, None),
    "free_tool_choice": Edit(
        _choose_freely,
        Note("tool_choice", "clamped", "the model refused a forced tool choice: sent as auto"),
        "required_tool_choice",
    ),
    "schema_as_prompt": Edit(
        _schema_as_prompt,
        Note("output_config.format", "emulated", "the schema is sent in the system prompt"),
        "json_schema",
    ),
    "no_system_role": Edit(
        _shape(move_system_text, moves_system=True),
        Note(*_TEMPLATE, "the chat template has no system role: sent as user text"),
        "system_role",
    ),
    "system_first": Edit(
        _shape(hoist_system_text, moves_system=True),
        Note(*_TEMPLATE, "the chat template takes system text only at the start: moved there"),
        "system_in_place",
    ),
    "single_calls": Edit(
        _shape(split_calls),
        Note(*_TEMPLATE, "the chat template takes one call in a message: sent one after the other"),
        "single_calls",
    ),
    "merge_turns": Edit(
        _shape(merge_turns),
        Note(*_TEMPLATE, "the chat template requires alternating roles: messages were merged"),
        "merge_users",
    ),
    "calls_as_text": Edit(
        _shape(write_calls_as_text),
        Note(*_TEMPLATE, "the chat template has no tool messages: calls and results as text"),
        "tool_messages",
    ),
    "output_limit_field": Edit(
        _rename_output_limit,
        Note("max_tokens", "renamed", "the upstream accepts it under its other name"),
        "max_tokens_field",
    ),
    "min_output": Edit(
        _raise_output_limit,
        Note("max_tokens", "clamped", "less than the upstream's minimum: sent with that minimum"),
        "min_output_tokens",
    ),
    "max_output": Edit(
        _lower_output_limit,
        Note("max_tokens", "clamped", "more than the model's output limit: sent with that limit"),
    ),
    "no_reasoning_with_tools": Edit(
        _disable_reasoning,
        Note("thinking", "dropped", "the upstream does not reason with tools: without reasoning"),
    ),
    "sign_calls": Edit(
        _sign_calls,
        Note("messages", "emulated", "calls without a thought signature are marked as such"),
        "signed_calls",
    ),
    "fill_reasoning": Edit(
        _fill_reasoning,
        Note("messages", "emulated", "the upstream requires reasoning in each assistant message:"
             " sent a space"),
    ),
}  # fmt: skip
