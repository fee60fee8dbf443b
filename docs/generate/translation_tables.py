"""Generate the tables of ``mapping.md`` from the tables that the translator uses."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from translator.anthropic import content_blocks as anthropic_content_blocks
from translator.anthropic.stop_reason import INCOMPLETE_REASONS
from translator.capabilities import PROFILES, Profile
from translator.notes import LOSSY
from translator.openai_chat import chat_stream, finish_reason
from translator.openai_chat import request_body as chat_request
from translator.openai_chat.messages import ChatTurn
from translator.openai_chat.reasoning import REASONING_FIELDS
from translator.openai_responses import event_table, hosted_tools
from translator.openai_responses import request_body as responses_request
from translator.openai_responses import tools as responses_tools
from translator.openai_responses.input_items import ResponsesTurn
from translator.openai_responses.responses_stream import ResponsesStream
from translator.request.body_edits import FIELDS
from translator.request.content_parts import PartBuilder
from translator.request.conversation import ASSISTANT_BLOCKS
from translator.request.retry_repairs import ANTHROPIC_RULES, CLIENT_FIELD_RULES, OPENAI_RULES
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
    return f"built by {code(tables.BUILT[name].__name__.strip('_'))}"


def request_fields() -> str:
    names = {n: None for t in DIALECTS.values() for n in (*t.COPIED, *t.RENAMED, *t.BUILT,
                                                          *DROPPED, *t.REFUSED)}  # fmt: skip
    rows = [[code(name), *(fate(t, name) for t in DIALECTS.values())] for name in sorted(names)]
    return table(["field", *DIALECTS], rows)


def content_blocks() -> str:
    """Return a row for each role and block type, with its translation in each dialect."""
    places = {
        "user": (
            anthropic_content_blocks.USER_BLOCKS,
            *[PartBuilder.BLOCKS] * 2,
        ),
        "assistant": (
            anthropic_content_blocks.ASSISTANT_BLOCKS,
            *(
                {kind: getattr(turn, name) for kind, name in ASSISTANT_BLOCKS.items()}
                for turn in (ResponsesTurn, ChatTurn)
            ),
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
            rows.append([role, code(kind), *cells])
    return table(["role", "block", *DIALECTS], rows)


def describe_builder(builders: Mapping[str, Any], kind: str) -> str:
    if kind not in builders:
        return "**rejected** with 400"
    builder = builders[kind]
    by_name = BUILDER_DESCRIPTIONS.get(builder.__name__, "translated")
    return BUILDER_DESCRIPTIONS.get(builder.__qualname__, by_name)


BUILDER_DESCRIPTIONS = {
    "omit": "dropped, with a note",
    "add_rendered_text": "sent as text, with a note",
    "add_mcp_call": "`mcp_call` for a server of the request; otherwise dropped, with a note",
    "add_mcp_result": "`output` of its `mcp_call`; otherwise sent as text, with a note",
    "add_compaction": "the original item for its own upstream, else its summary as system text",
    "_search_result": "sent as text",
    "_tool_reference": "sent as text",
    "ResponsesTurn.add_thinking": "the original reasoning item, only for its own upstream",
    "ChatTurn.add_thinking": "the vendor's original reasoning field, only for its own upstream",
}
"""Builders that do more than translate a block one to one."""


def tools() -> str:
    rows = [[code(f"{p}…"), as_function(p), as_function(p)] for p in sorted(CLIENT_TOOLS)]
    for prefix, tool in sorted(SERVER_TOOLS.items()):
        own = responses_tools.HOSTED_TOOLS.get(prefix)
        default = f"{tool.fate}: {tool.reason}"
        native = f"OpenAI's tool, with capability {code(own.capability)}; otherwise " if own else ""
        rows.append([code(f"{prefix}…"), native + default, default])
    return table(["tool", *DIALECTS], rows)


def as_function(prefix: str) -> str:
    function = f"function {code(CLIENT_TOOLS[prefix].name)}"
    needed = REQUIRED_CAPABILITY.get(prefix)
    return f"{function}, with capability {code(needed)}; otherwise rejected" if needed else function


def responses_events() -> str:
    rows = []
    for name, source in event_table.EVENT_MAPPINGS.items():
        rows.append([name, f"text: {code(source.handler.__name__)} of a {source.item_type}"])
    for name, handler in ResponsesStream.HANDLERS.items():
        if name not in event_table.EVENT_MAPPINGS:
            rows.append([name, f"handled: {code(handler.__name__.strip('_'))}"])
    rows += [[name, "`ping`"] for name in event_table.PINGS]
    rows += [[name, "ignored on purpose"] for name in event_table.IGNORED]
    return table(["event", "becomes"], ([code(name), cell] for name, cell in sorted(rows)))


def chat_fields() -> str:
    stream = chat_stream.ChatStream
    rows = [[code(f"delta.{name}"), f"handled: {code(handler.__name__.strip('_'))}"]
            for name, handler in stream.HANDLERS.items()]  # fmt: skip
    rows += [[code(f"delta.{name}"), "thinking; the first non-empty field is used"]
             for name in REASONING_FIELDS]  # fmt: skip
    ignored = sorted(stream.IGNORED - stream.REASONING_KEYS)
    carried = sorted(stream.REASONING_KEYS - {*REASONING_FIELDS})
    rows += [[code(f"delta.{name}"), "thinking, unchanged"] for name in carried]
    rows += [[code(f"delta.{name}"), "ignored on purpose"] for name in ignored]
    rows += [[code(name), "dropped, with a note"] for name in sorted(chat_stream.SOURCE_FIELDS)]
    return table(["field of a chunk", "becomes"], rows)


def output_items() -> str:
    rows = []
    for name, build in sorted(hosted_tools.BLOCK_BUILDERS.items()):
        need = hosted_tools.REQUIRED_CAPABILITY.get(name)
        when = f", with capability {code(need)}" if need else ""
        rows.append([code(name), f"blocks of {code(build.__name__)}{when}"])
    return table(["output item", "becomes"], rows)


def stop_reasons() -> str:
    rows = [["Responses", code(f"incomplete: {why}"), code(ours)]
            for why, ours in INCOMPLETE_REASONS.items()]  # fmt: skip
    rows += [["Chat", code(why), code(ours)] for why, ours in finish_reason.FINISH_REASONS.items()]
    rows += [
        ["Chat", code(why), f"error {code(e.error_type)}"]
        for why, e in finish_reason.FAILURES.items()
    ]
    return table(["dialect", "upstream value", "stop reason"], rows)


def errors() -> str:
    def row(what: str, verdict: mapping.ErrorMapping) -> list[str]:
        message = verdict.message or "the upstream's message, redacted"
        retry = {None: "client decides", True: "yes", False: "no"}[verdict.should_retry]
        return [what, f"{verdict.status} {code(verdict.error_type)}", message, retry]

    rows = [row(f"HTTP {status}", verdict) for status, verdict in mapping.BY_STATUS.items()]
    rows.append(row("any other status", mapping.BROKEN))
    rows += [row(f"code or type {code(name)}", v) for name, v in mapping.BY_CODE.items()]
    rows += [
        row(f"inside a 200, type {code(name)}", v) for name, v in mapping.BY_TYPE_ALONE.items()
    ]
    rows += [[f"code {code(name)}", "200, stop reason `refusal`",
              f"category {code(category)}" if category else "no category", "no"]
             for name, category in mapping.REFUSALS.items()]  # fmt: skip
    return table(["upstream", "client receives", "message", "retry"], rows)


def repairs() -> str:
    rules = {
        "OpenAI": OPENAI_RULES,
        "Anthropic": ANTHROPIC_RULES,
        "Anthropic, other servers": CLIENT_FIELD_RULES,
    }
    rows = [
        [name, ", ".join(map(str, sorted(rule.statuses))), rule.title]
        for name, table_ in rules.items()
        for rule in table_
    ]
    return table(["API", "status", "what is refused"], rows)


def optional_fields() -> str:
    """Return a row for each field that the gateway adds or chooses, with its capability."""
    rows = [
        [code(path), code(field.capability) if field.capability else "", field.fate]
        for path, field in FIELDS.items()
    ]
    return table(["field", "capability", "result"], rows)


def profiles() -> str:
    plain = Profile()
    fields = [f.name for f in dataclasses.fields(Profile) if f.name != "name"]
    named = {name: profile for name, profile in PROFILES.items() if name != "generic"}
    rows = []
    for name in fields:
        default = getattr(plain, name)
        cells = [getattr(profile, name) for profile in named.values()]
        rows.append([
            code(name), format_value(default),
            *("" if cell == default else format_value(cell) for cell in cells),
        ])  # fmt: skip
    return table(["capability", "`generic`", *map(code, named)], rows)


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
