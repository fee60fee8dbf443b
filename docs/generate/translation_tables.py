"""Generate the tables of ``mapping.md`` from the tables that the translator uses."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from translator.anthropic import content_blocks as anthropic_content_blocks
from translator.anthropic.stop_reason import INCOMPLETE_REASONS
from translator.capabilities import PROFILES, Profile
from translator.notes import LOSSY
from translator.openai_chat.reasoning_details import REASONING_FIELDS
from translator.openai_chat.request import assistant_messages as chat_assistant
from translator.openai_chat.request import content_parts as chat_parts
from translator.openai_chat.request import request_body as chat_request
from translator.openai_chat.stream import chat_stream, finish_reason
from translator.openai_responses.request import assistant_items as responses_assistant
from translator.openai_responses.request import content_parts as responses_parts
from translator.openai_responses.request import request_body as responses_request
from translator.openai_responses.request import tools as responses_tools
from translator.openai_responses.stream import event_table, hosted_tools
from translator.openai_responses.stream.responses_stream import ResponsesStream
from translator.request.body_edits import FIELDS
from translator.request.client_fields import CLIENT_FIELD_RULES
from translator.request.retry_repairs import ANTHROPIC_RULES, OPENAI_RULES
from translator.request.tool_support import CLIENT_TOOLS, REQUIRED_CAPABILITY, SERVER_TOOLS
from translator.request.unsent_fields import DROPPED, HARMLESS
from translator.upstream_errors import mapping

DIALECTS = {"Responses": responses_request, "Chat": chat_request}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*heads], ["---" for _ in heads], *([*row] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip


def code(value: Any) -> str:
    return f"`{value}`"


def grouped(
    heads: Iterable[str], names: Iterable[tuple[str, tuple[str, ...]]], *, last: bool = False
) -> str:
    """Return a table with one row for all names of the same cells; ``last``: names come last."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cells in names:
        groups.setdefault(cells, []).append(code(name))
    rows = [
        [*cells, ", ".join(group)] if last else [", ".join(group), *cells]
        for cells, group in groups.items()
    ]
    return table(heads, rows)


def both(responses: str, chat: str) -> str:
    """Return the translation in both dialects, once if it is the same."""
    return responses if responses == chat else f"Responses: {responses}; Chat: {chat}"


def fate(tables: Any, name: str) -> str:
    """Return how one dialect translates one field of a request."""
    if name in tables.COPIED:
        return "copied"
    if name in tables.RENAMED:
        return f"renamed to {code(tables.RENAMED[name])}"
    if name in tables.REFUSED:
        return f"**rejected**: {tables.REFUSED[name]}"
    if name in DROPPED:
        harmless = "" if name not in HARMLESS else " (harmless)"
        return f"dropped{harmless}: {DROPPED[name]}"
    return "translated"


def request_fields() -> str:
    names = {n: None for t in DIALECTS.values() for n in (*t.COPIED, *t.RENAMED, *t.BUILT,
                                                          *DROPPED, *t.REFUSED)}  # fmt: skip
    fates = ((n, (both(*(fate(t, n) for t in DIALECTS.values())),)) for n in sorted(names))
    return grouped(["fields", "result"], fates)


def content_blocks() -> str:
    """Return a row for each role and translation, with its block types."""
    places = {
        "user": (
            anthropic_content_blocks.USER_BLOCKS,
            responses_parts.PART_BUILDER.BLOCKS,
            chat_parts.PART_BUILDER.BLOCKS,
        ),
        "assistant": (
            anthropic_content_blocks.ASSISTANT_BLOCKS,
            responses_assistant.ASSISTANT_BLOCKS,
            chat_assistant.ASSISTANT_BLOCKS,
        ),
    }
    rows = []
    for role, (known, *dialects) in places.items():
        for kind in sorted(known):
            if kind == "tool_result":
                cells = [
                    "`function_call_output`, before the other content of the turn",
                    "`tool` message",
                ]
            else:
                cells = [describe_builder(builders, kind) for builders in dialects]
            rows.append((kind, (role, both(*cells))))
    return grouped(["role", "result", "blocks"], rows, last=True)


def describe_builder(builders: Mapping[str, Any], kind: str) -> str:
    if kind not in builders:
        return "**rejected** with 400"
    return BUILDER_DESCRIPTIONS.get(builders[kind].__name__, "translated")


BUILDER_DESCRIPTIONS = {
    "_omit": "dropped, with a note",
    "_add_rendered_text": "sent as text, with a note",
    "_add_mcp_call": "`mcp_call` for a server of the request; otherwise dropped, with a note",
    "_add_mcp_result": "`output` of its `mcp_call`; otherwise sent as text, with a note",
    "_add_compaction": "the original item for its own upstream, else its summary as system text",
    "_search_result": "sent as text",
    "_tool_reference": "sent as text",
    "_add_reasoning_item": "the original reasoning item, only for its own upstream",
    "_add_thinking_block": "the vendor's original reasoning field, only for its own upstream",
}
"""Builders that do more than translate a block one to one."""


def tools() -> str:
    rows = [[code(f"{p}…"), as_function(p)] for p in sorted(CLIENT_TOOLS)]
    for prefix, tool in sorted(SERVER_TOOLS.items()):
        own = responses_tools.HOSTED_TOOLS.get(prefix)
        fate = f"{tool.fate}: {tool.reason}"
        if own:
            fate = f"OpenAI's tool (Responses, capability {code(own.capability)}); otherwise {fate}"
        rows.append([code(f"{prefix}…"), fate])
    return table(["tool", "result"], rows)


def as_function(prefix: str) -> str:
    function = f"function {code(CLIENT_TOOLS[prefix].name)}"
    needed = REQUIRED_CAPABILITY.get(prefix)
    return f"{function}, with capability {code(needed)}; otherwise rejected" if needed else function


def responses_events() -> str:
    rows = []
    for name, source in event_table.EVENT_MAPPINGS.items():
        rows.append((name, f"part of a {code(source.item_type)}"))
    others = ResponsesStream.HANDLERS.keys() - event_table.EVENT_MAPPINGS.keys()
    rows += [(name, "start, item, end or error") for name in others]
    rows += [(name, "`ping`") for name in event_table.PINGS]
    rows += [(name, "ignored on purpose") for name in event_table.IGNORED]
    return grouped(["becomes", "events"], ((name, (cell,)) for name, cell in sorted(rows)),
                   last=True)  # fmt: skip


def chat_fields() -> str:
    stream = chat_stream.ChatStream
    rows = [(f"delta.{name}", "translated") for name in stream.HANDLERS]
    rows += [(f"delta.{name}", "thinking, of the first non-empty field")
             for name in REASONING_FIELDS]  # fmt: skip
    ignored = sorted(stream.IGNORED - stream.REASONING_KEYS)
    carried = sorted(stream.REASONING_KEYS - {*REASONING_FIELDS})
    rows += [(f"delta.{name}", "thinking, unchanged") for name in carried]
    rows += [(f"delta.{name}", "ignored on purpose") for name in ignored]
    rows += [(name, "dropped, with a note") for name in sorted(chat_stream.SOURCE_FIELDS)]
    return grouped(["becomes", "fields of a chunk"], ((name, (cell,)) for name, cell in rows),
                   last=True)  # fmt: skip


ITEM_BLOCKS = {
    "code_interpreter_call": "`server_tool_use`, `code_execution_tool_result`",
    "mcp_call": "`mcp_tool_use`, `mcp_tool_result`",
    "web_search_call": "`server_tool_use`, `web_search_tool_result`",
}


def output_items() -> str:
    rows = []
    for name in sorted(hosted_tools.BLOCK_BUILDERS):
        need = hosted_tools.REQUIRED_CAPABILITY.get(name)
        rows.append([code(name), ITEM_BLOCKS[name], code(need) if need else ""])
    return table(["output item", "becomes", "capability"], rows)


def stop_reasons() -> str:
    rows = [(why, (code(ours), "Responses, `incomplete`"))
            for why, ours in INCOMPLETE_REASONS.items()]  # fmt: skip
    rows += [(why, (code(ours), "Chat")) for why, ours in finish_reason.FINISH_REASONS.items()]
    rows += [
        (why, (f"error {code(e.error_type)}", "Chat")) for why, e in finish_reason.FAILURES.items()
    ]
    return grouped(["stop reason", "dialect", "upstream values"], rows, last=True)


def errors() -> str:
    rows: list[tuple[str, tuple[str, ...]]] = []

    def add(place: str, verdicts: Mapping[Any, mapping.ErrorMapping]) -> None:
        for value, verdict in verdicts.items():
            retry = {None: "", True: "yes", False: "no"}[verdict.should_retry]
            result = f"{verdict.status} {code(verdict.error_type)}"
            if verdict.message:
                result += f" *{verdict.message}*"
            rows.append((str(value), (result, retry, place)))

    add("status", {**mapping.BY_STATUS, "any other": mapping.BROKEN})
    add("code or type", mapping.BY_CODE)
    add("type of an error inside a 200", mapping.BY_TYPE_ALONE)
    for name, category in mapping.REFUSALS.items():
        named = f", category {code(category)}" if category else ""
        rows.append((name, (f"200, stop reason `refusal`{named}", "no", "code")))
    return grouped(["client receives", "retry", "by", "upstream values"], sorted(
        rows, key=lambda row: (row[1][2] != "status", row[1][2])), last=True)  # fmt: skip


def repairs() -> str:
    rules = {
        "OpenAI": OPENAI_RULES,
        "Anthropic": ANTHROPIC_RULES,
        "Anthropic, other servers": CLIENT_FIELD_RULES,
    }
    usual = OPENAI_RULES[0].statuses
    rows = []
    for name, table_ in rules.items():
        titles = []
        for rule in table_:
            more = ", ".join(map(str, sorted(rule.statuses - usual)))
            titles.append(f"{rule.title} (also {more})" if more else rule.title)
        rows.append([name, "; ".join(titles)])
    statuses = ", ".join(map(str, sorted(usual)))
    return table(["API", f"what is refused, with status {statuses}"], rows)


def optional_fields() -> str:
    """Return the fields that the gateway adds or chooses, by result and capability."""
    fields = (
        (path, (field.fate, code(field.capability) if field.capability else ""))
        for path, field in sorted(FIELDS.items(), key=lambda item: (item[1].fate, item[0]))
    )
    return grouped(["result", "capability", "fields"], fields, last=True)


def profiles() -> str:
    """Return each capability with its default, and the profiles that have another value."""
    plain = Profile()
    rows = []
    for field in dataclasses.fields(Profile):
        if field.name == "name":
            continue
        default = format_value(getattr(plain, field.name))
        values: dict[str, list[str]] = {}
        for name, profile in PROFILES.items():
            value = format_value(getattr(profile, field.name))
            if value != default:
                values.setdefault(value, []).append(code(name))
        others = "; ".join(f"{value}: {', '.join(names)}" for value, names in values.items())
        rows.append([code(field.name), default, others])
    return table(["capability", "`generic`", "other profiles"], rows)


def format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value) or "none"


def lossy() -> str:
    return (
        "Strict mode rejects requests with a field that would be "
        + " or ".join(sorted(LOSSY))
        + "."
    )


PARTS = {
    "request_fields": request_fields,
    "content_blocks": content_blocks,
    "tools": tools,
    "responses_events": responses_events,
    "chat_fields": chat_fields,
    "output_items": output_items,
    "stop_reasons": stop_reasons,
    "errors": errors,
    "repairs": repairs,
    "optional_fields": optional_fields,
    "profiles": profiles,
    "lossy": lossy,
}
