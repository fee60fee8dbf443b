"""The tables of ``mapping.md``, read from the tables that the translator works by."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from translator.anthropic import content
from translator.anthropic.stop_reason import INCOMPLETE_REASONS
from translator.client_tools import CAPABILITY, CLIENT_TOOLS, SERVER_TOOLS
from translator.notes import LOSSY
from translator.openai_chat import assistant as chat_assistant
from translator.openai_chat import finish
from translator.openai_chat import parts as chat_parts
from translator.openai_chat import request as chat_request
from translator.openai_chat import stream as chat_stream
from translator.openai_chat.details import REASONING_FIELDS
from translator.openai_responses import assistant as responses_assistant
from translator.openai_responses import events, hosted
from translator.openai_responses import parts as responses_parts
from translator.openai_responses import request as responses_request
from translator.openai_responses import tools as responses_tools
from translator.openai_responses.stream import ResponsesStream
from translator.profiles import PROFILES, Profile
from translator.repairs import ANTHROPIC_FIXES, CHAT_FIXES, RESPONSES_FIXES
from translator.upstream_errors import verdicts

DIALECTS = {"Responses": responses_request, "Chat": chat_request}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*heads], ["---" for _ in heads], *([*row] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip


def code(word: Any) -> str:
    return f"`{word}`"


def fate(tables: Any, name: str) -> str:
    """What becomes of one field of a request in one dialect."""
    if name in tables.COPIED:
        return "copied"
    if name in tables.RENAMED:
        return f"renamed to {code(tables.RENAMED[name])}"
    if name in tables.REFUSED:
        return f"**refused**: {tables.REFUSED[name]}"
    if name in tables.DROPPED:
        harmless = "" if name not in tables.HARMLESS else " (harmless)"
        return f"dropped{harmless}: {tables.DROPPED[name]}"
    return f"built by {code(tables.BUILT[name].__name__.strip('_'))}"


def request_fields() -> str:
    names = {n: None for t in DIALECTS.values() for n in (*t.COPIED, *t.RENAMED, *t.BUILT,
                                                          *t.DROPPED, *t.REFUSED)}  # fmt: skip
    rows = [[code(name), *(fate(t, name) for t in DIALECTS.values())] for name in sorted(names)]
    return table(["field", *DIALECTS], rows)


def content_blocks() -> str:
    """Where a block may stand, and whether each dialect has a form for it there."""
    places = {
        "user": (content.USER_BLOCKS, responses_parts.PARTS.BLOCKS, chat_parts.PARTS.BLOCKS),
        "assistant": (
            content.ASSISTANT_BLOCKS,
            responses_assistant.ASSISTANT_BLOCKS,
            chat_assistant.ASSISTANT_BLOCKS,
        ),
    }
    rows = []
    for role, (known, *dialects) in places.items():
        for kind in sorted(known):
            if kind == "tool_result":
                told = ["`function_call_output`, before the turn's own words", "`tool` message"]
            else:
                told = [does(builders, kind) for builders in dialects]
            rows.append([role, code(kind), *told])
    return table(["role", "block", *DIALECTS], rows)


def does(builders: Mapping[str, Any], kind: str) -> str:
    if kind not in builders:
        return "**refused** with 400"
    return MANNERS.get(builders[kind].__name__, "carried over")


MANNERS = {
    "_omitted": "left out, with a note",
    "_rendered": "told as text, with a note",
    "_compaction": "its maker's own item again, else its summary as system text",
    "_search_result": "told as text",
    "_tool_reference": "told as text",
    "_thinking": "the reasoning item again, for its maker alone",
    "_thought": "the vendor's reasoning field again, for its maker alone",
}
"""Builders that do more than carry a block over."""


def tools() -> str:
    rows = [[code(f"{p}…"), as_function(p), as_function(p)] for p in sorted(CLIENT_TOOLS)]
    for prefix, tool in sorted(SERVER_TOOLS.items()):
        own = responses_tools.HOSTED.get(prefix)
        here = f"{tool.verdict}: {tool.reason}"
        native = f"OpenAI's own, with capability {code(own.capability)}; else " if own else ""
        rows.append([code(f"{prefix}…"), native + here, here])
    return table(["tool", *DIALECTS], rows)


def as_function(prefix: str) -> str:
    told = f"function {code(CLIENT_TOOLS[prefix].name)}"
    needed = CAPABILITY.get(prefix)
    return f"{told}, with capability {code(needed)}; else refused" if needed else told


def responses_events() -> str:
    rows = []
    for name, words in events.SAID.items():
        rows.append([name, f"said: {code(words.say.__name__)} of a {words.item_type}"])
    for name, handler in ResponsesStream.HANDLERS.items():
        if name not in events.SAID:
            rows.append([name, f"handled: {code(handler.__name__.strip('_'))}"])
    rows += [[name, "`ping`"] for name in events.PINGS]
    rows += [[name, "passed over on purpose"] for name in events.IGNORED]
    return table(["event", "becomes"], ([code(n), does_] for n, does_ in sorted(rows)))


def chat_fields() -> str:
    stream = chat_stream.ChatStream
    rows = [[code(f"delta.{name}"), f"handled: {code(handler.__name__.strip('_'))}"]
            for name, handler in stream.HANDLERS.items()]  # fmt: skip
    rows += [[code(f"delta.{name}"), "thinking; the first that is not empty counts"]
             for name in REASONING_FIELDS]  # fmt: skip
    quiet = sorted(stream.IGNORED - stream.THOUGHTS)
    carried = sorted(stream.THOUGHTS - {*REASONING_FIELDS})
    rows += [[code(f"delta.{name}"), "thinking, carried verbatim"] for name in carried]
    rows += [[code(f"delta.{name}"), "passed over on purpose"] for name in quiet]
    rows += [[code(name), "dropped, with a note"] for name in sorted(chat_stream.CITED_ASIDE)]
    return table(["field of a chunk", "becomes"], rows)


def output_items() -> str:
    rows = []
    for name, build in sorted(hosted.HOSTED.items()):
        need = hosted.CAPABILITY.get(name)
        when = f", with capability {code(need)}" if need else ""
        rows.append([code(name), f"blocks of {code(build.__name__)}{when}"])
    return table(["output item", "becomes"], rows)


def stop_reasons() -> str:
    rows = [["Responses", code(f"incomplete: {why}"), code(ours)]
            for why, ours in INCOMPLETE_REASONS.items()]  # fmt: skip
    rows += [["Chat", code(why), code(ours)] for why, ours in finish.FINISH_REASONS.items()]
    rows += [
        ["Chat", code(why), f"error {code(e.error_type)}"] for why, e in finish.FAILURES.items()
    ]
    return table(["dialect", "upstream says", "stop reason"], rows)


def errors() -> str:
    def row(what: str, verdict: verdicts.Verdict) -> list[str]:
        words = verdict.message or "the upstream's, scrubbed"
        retry = {None: "the client's rule", True: "yes", False: "no"}[verdict.should_retry]
        return [what, f"{verdict.status} {code(verdict.error_type)}", words, retry]

    rows = [row(f"HTTP {status}", verdict) for status, verdict in verdicts.BY_STATUS.items()]
    rows.append(row("any other status", verdicts.BROKEN))
    rows += [row(f"code or type {code(word)}", v) for word, v in verdicts.BY_WORD.items()]
    rows += [
        row(f"inside a 200, type {code(word)}", v) for word, v in verdicts.BY_TYPE_ALONE.items()
    ]
    rows += [[f"code {code(word)}", "200, stop reason `refusal`",
              f"category {code(category)}" if category else "no category", "no"]
             for word, category in verdicts.REFUSALS.items()]  # fmt: skip
    return table(["upstream", "client gets", "message", "retry"], rows)


def repairs() -> str:
    fixes = {"Responses": RESPONSES_FIXES, "Chat": CHAT_FIXES, "Anthropic": ANTHROPIC_FIXES}
    rows = [[dialect, code(fix.names.pattern), code(fix.note.path), fix.note.fate, fix.note.reason]
            for dialect, table_ in fixes.items() for fix in table_]  # fmt: skip
    return table(
        ["dialect", "a 400 or 422 that names", "field", "fate", "what is tried once"], rows
    )


def profiles() -> str:
    plain = Profile()
    fields = [f.name for f in dataclasses.fields(Profile) if f.name != "name"]
    named = {name: profile for name, profile in PROFILES.items() if name != "generic"}
    rows = []
    for name in fields:
        usual = getattr(plain, name)
        cells = [getattr(profile, name) for profile in named.values()]
        rows.append([code(name), shown(usual), *("" if c == usual else shown(c) for c in cells)])
    return table(["capability", "`generic`", *map(code, named)], rows)


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value) or "none"


def lossy() -> str:
    return "Strict mode refuses what would be " + " or ".join(sorted(LOSSY)) + "."


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
    "profiles": profiles,
    "lossy": lossy,
}
