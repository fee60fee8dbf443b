"""Notes the fields of a request for which an upstream's message has no place.

They may stand on any block of a long history, so they are looked for in one pass, and each kind
has one note, with the first place and how many there are. Source: mapping.md 1.3, 1.7.1 and 1.10.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from .draft import Draft
from .notes import Fate

MARK: Final = "cache_control"
MARKED: Final = frozenset({"text", "image", "document"})
"""Blocks of user and system whose cache marks have a place upstream, where it takes marks."""

REASONS: Final[dict[str, tuple[Fate, str]]] = {
    MARK: ("dropped", "this upstream takes no cache mark here"),
    "citations": ("dropped", "this upstream takes no citations of earlier answers"),
    "allowed_callers": ("dropped", "only direct calls are possible here"),
    "block_binding": ("dropped", "the upstream binds no thinking to its block"),
    "max_characters": ("dropped", "the client's tool is told as a function without this limit"),
    "eager_input_streaming": ("ignored", "arguments stream as the upstream sends them"),
    "ttl": ("clamped", "this upstream keeps a marked prefix for half an hour at most"),
}

OF_TOOLS: Final = (MARK, "eager_input_streaming", "max_characters")
"""Fields of a tool's definition that no function has; ``allowed_callers`` beside them."""

Found = tuple[str, str, bool]
"""The field, its path, and whether the upstream might take it here."""


def note_unsent(
    draft: Draft, sent: Iterable[Any], *, system_messages: bool = True, long_marks: bool = True
) -> None:
    """Note cache marks, citations and hints that did not get into the body.

    ``sent``: the messages of the body, in which marks are ``prompt_cache_breakpoint``.
    ``system_messages``: marks inside system messages have a place. ``long_marks``: so has ``1h``.
    """
    found = [*_in_options(draft.request), *_in_conversation(draft.request, system_messages)]
    if draft.request.get(MARK):
        found.append((MARK, MARK, True))
    if not found:
        return
    lost: dict[str, list[str]] = {}
    marks: list[str] = []  # that may have been sent
    for name, path, has_place in found:
        if has_place and draft.profile.cache_breakpoints and name in (MARK, "ttl"):
            if name == MARK:
                marks.append(path)
            elif not long_marks:
                lost.setdefault(name, []).append(path)
        elif name != "ttl":  # it went with its mark
            lost.setdefault(name, []).append(path)
    # Of too many marks the latest are kept. Two marks may have become one: on the same part.
    missing = marks[: max(0, len(marks) - _breakpoints(sent))] if marks else []
    if missing and missing != [MARK]:
        lost.setdefault(MARK, []).extend(missing)
    for name, paths in lost.items():
        fate, reason = REASONS[name]
        draft.note(paths[0], fate, f"{reason} ({len(paths)} in all)" if paths[1:] else reason)


def _in_options(request: dict[str, Any]) -> Iterator[Found]:
    thinking = request.get("thinking")
    if thinking and thinking.get("block_binding"):
        yield "block_binding", "thinking.block_binding", False
    for number, tool in enumerate(request.get("tools") or ()):
        for name in OF_TOOLS:
            if name in tool and tool[name]:  # noqa: RUF019 - no call for each tool
                yield name, f"tools.{number}.{name}", False
        if "allowed_callers" in tool and tool["allowed_callers"] not in (None, [], ["direct"]):
            yield "allowed_callers", f"tools.{number}.allowed_callers", False


def _in_conversation(request: dict[str, Any], system_messages: bool) -> Iterator[Found]:
    system = request.get("system")
    if system.__class__ is list:
        yield from _in_blocks(system, "system", marked=True)
    for number, message in enumerate(request["messages"]):
        content = message["content"]
        if content.__class__ is not list:
            continue
        for block in content:  # a call for each list of blocks is too dear: most have nothing
            if MARK in block or "citations" in block or "source" in block or "content" in block:
                role = message["role"]
                marked = role == "user" or (role == "system" and system_messages)
                yield from _in_blocks(content, f"messages.{number}.content", marked=marked)
                break


def _in_blocks(blocks: list[Any], path: str, *, marked: bool) -> Iterator[Found]:
    for number, block in enumerate(blocks):
        here = f"{path}.{number}"
        has_place = marked and block["type"] in MARKED
        if MARK in block and block[MARK]:  # noqa: RUF019 - as above
            yield MARK, f"{here}.{MARK}", has_place
            if block[MARK].get("ttl") == "1h":
                yield "ttl", f"{here}.{MARK}.ttl", has_place
        if "citations" in block and block["citations"].__class__ is list and block["citations"]:
            yield "citations", f"{here}.citations", False
        if "content" in block and block["content"].__class__ is list:
            inner = [one for one in block["content"] if one.__class__ is dict and "type" in one]
            yield from _in_blocks(inner, f"{here}.content", marked=False)
        source = block["source"] if "source" in block else None  # noqa: SIM401 - no call for each
        if source.__class__ is dict and source.get("content").__class__ is list:
            yield from _in_blocks(source["content"], f"{here}.source.content", marked=has_place)


def _breakpoints(sent: Iterable[Any]) -> int:
    parts = (
        part for one in sent if one.get("content").__class__ is list for part in one["content"]
    )
    return sum("prompt_cache_breakpoint" in part for part in parts)
