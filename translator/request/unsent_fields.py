"""Reject or drop request fields that the OpenAI APIs do not have, with notes.

Any block of a long history may have such fields, so one pass finds all of them. For each kind of
field there is one note, with the first path and the number of fields. Source:
docs/mapping.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from translator.anthropic.request_validation import FIELDS
from translator.anthropic.validators import shorten
from translator.errors import BadRequest
from translator.notes import Fate

from .builder import RequestBuilder

CACHE_CONTROL: Final = "cache_control"
CACHEABLE_BLOCKS: Final = frozenset({"text", "image", "document"})
"""Types of user and system blocks whose ``cache_control`` can become a cache breakpoint."""

REASONS: Final[dict[str, tuple[Fate, str]]] = {
    CACHE_CONTROL: ("dropped", "this upstream does not accept a cache mark here"),
    "citations": ("dropped", "this upstream does not accept citations of earlier responses"),
    "allowed_callers": ("dropped", "only direct calls are possible here"),
    "block_binding": ("dropped", "the upstream does not bind thinking to its block"),
    "max_characters": ("dropped", "the client's tool is sent as a function without this limit"),
    "eager_input_streaming": ("ignored", "arguments stream as the upstream sends them"),
    "ttl": ("clamped", "this upstream caches a marked prefix for at most half an hour"),
}

TOOL_FIELDS: Final = (CACHE_CONTROL, "eager_input_streaming", "max_characters")
"""Fields of a tool that OpenAI functions do not have (``allowed_callers`` is handled elsewhere)."""

FieldLocation = tuple[str, str, bool]
"""A field's name, its path, and whether the upstream may accept the field in that place."""

DROPPED: Final[Mapping[str, str]] = {
    "betas": "a header, read by the gateway",
    "diagnostics": "the upstream reports no cache diagnostics",
    "fallback_credit_token": "the gateway has its own fallbacks",
    "fallbacks": "the gateway has its own fallbacks",
    "tags": "the gateway records them",
    "user_profile_id": "a header of another provider",
    "workspace_id": "a header of another provider",
}
"""Fields that neither OpenAI API has, with the reason for the note."""

HARMLESS: Final = frozenset({"betas", "diagnostics", "fallbacks", "fallback_credit_token", "tags"})
"""Fields that are dropped without loss, so the gateway's strict mode accepts them."""

MAX_QUOTED_FIELDS: Final = 5  # maximum number of unknown fields quoted in a note


def reject_fields(builder: RequestBuilder, refused: Mapping[str, str]) -> None:
    """Reject the fields in ``refused``; drop the fields in ``DROPPED`` and unknown fields.

    Dropped fields get a note. Raises BadRequest for a rejected field.
    """
    # The upstream processes data in these regions; ``global`` is any of them.
    regions = ("global", *builder.profile.inference_geos)
    for name, reason in refused.items():
        value = builder.request.get(name)
        if value and not (name == "inference_geo" and value in regions):
            raise BadRequest(name, reason)
    for name, reason in DROPPED.items():
        if builder.request.get(name):
            builder.add_note(name, "ignored" if name in HARMLESS else "dropped", reason)
    if unknown := [name for name in builder.request if name not in FIELDS and name not in DROPPED]:
        # Clients choose these names. Quotes mark them, so that they can be removed where client
        # text must not be stored.
        names = "', '".join(shorten(name).replace("'", "?") for name in unknown[:MAX_QUOTED_FIELDS])
        reason_ = f"{len(unknown)} unknown fields: '{names}'"
        builder.add_note("request", "dropped", reason_)


def note_unsent_fields(
    builder: RequestBuilder,
    sent: Iterable[Any],
    *,
    system_messages: bool = True,
    long_marks: bool = True,
) -> None:
    """Write notes about request fields that the upstream body does not contain.

    The fields are cache marks (``cache_control``), citations and hints. ``sent`` are the messages
    of the upstream body, with cache marks as ``prompt_cache_breakpoint``. ``system_messages``:
    cache marks are possible in system messages. ``long_marks``: the upstream's cache has the
    lifetime ``1h``.
    """
    locations = [*_in_options(builder.request), *_in_conversation(builder.request, system_messages)]
    if builder.request.get(CACHE_CONTROL):
        locations.append((CACHE_CONTROL, CACHE_CONTROL, True))
    if not locations:
        return
    unsent: dict[str, list[str]] = {}
    cache_marks: list[str] = []  # paths of cache marks that may have been sent
    for name, path, has_place in locations:
        if has_place and builder.profile.cache_breakpoints and name in (CACHE_CONTROL, "ttl"):
            if name == CACHE_CONTROL:
                cache_marks.append(path)
            elif not long_marks:
                unsent.setdefault(name, []).append(path)
        elif name != "ttl":  # a ttl is sent together with its cache mark
            unsent.setdefault(name, []).append(path)
    # Of too many cache marks, the last ones are sent. Two marks on one part become one.
    if cache_marks:
        contents = [message.get("content") for message in sent]
        breakpoints = sum(
            "prompt_cache_breakpoint" in part
            for content in contents
            if content.__class__ is list
            for part in content
        )
        unsent_marks = cache_marks[: max(0, len(cache_marks) - breakpoints)]
        if unsent_marks and unsent_marks != [CACHE_CONTROL]:
            unsent.setdefault(CACHE_CONTROL, []).extend(unsent_marks)
    for name, paths in unsent.items():
        fate, reason = REASONS[name]
        builder.add_note(paths[0], fate, f"{reason} ({len(paths)} in all)" if paths[1:] else reason)


def _in_options(request: dict[str, Any]) -> Iterator[FieldLocation]:
    thinking = request.get("thinking")
    if thinking and thinking.get("block_binding"):
        yield "block_binding", "thinking.block_binding", False
    for number, tool in enumerate(request.get("tools") or ()):
        for name in TOOL_FIELDS:
            if name in tool and tool[name]:  # noqa: RUF019 - saves a call for each tool
                yield name, f"tools.{number}.{name}", False
        if "allowed_callers" in tool and tool["allowed_callers"] not in (None, [], ["direct"]):
            yield "allowed_callers", f"tools.{number}.allowed_callers", False


def _in_conversation(request: dict[str, Any], system_messages: bool) -> Iterator[FieldLocation]:
    system = request.get("system")
    if system.__class__ is list:
        yield from _in_blocks(system, "system", takes_marks=True)
    for number, message in enumerate(request["messages"]):
        content = message["content"]
        if content.__class__ is not list:
            continue
        # An inline loop, because a call for each list would be slow: most lists have no such field.
        for block in content:
            if (
                CACHE_CONTROL in block
                or "citations" in block
                or "source" in block
                or "content" in block
            ):
                role = message["role"]
                takes_marks = role == "user" or (role == "system" and system_messages)
                yield from _in_blocks(
                    content, f"messages.{number}.content", takes_marks=takes_marks
                )
                break


def _in_blocks(blocks: list[Any], path: str, *, takes_marks: bool) -> Iterator[FieldLocation]:
    for number, block in enumerate(blocks):
        block_path = f"{path}.{number}"
        has_place = takes_marks and block["type"] in CACHEABLE_BLOCKS
        if CACHE_CONTROL in block and block[CACHE_CONTROL]:  # noqa: RUF019 - saves a call
            yield CACHE_CONTROL, f"{block_path}.{CACHE_CONTROL}", has_place
            if block[CACHE_CONTROL].get("ttl") == "1h":
                yield "ttl", f"{block_path}.{CACHE_CONTROL}.ttl", has_place
        if "citations" in block and block["citations"].__class__ is list and block["citations"]:
            yield "citations", f"{block_path}.citations", False
        if "content" in block and block["content"].__class__ is list:
            inner = [
                inner_block
                for inner_block in block["content"]
                if inner_block.__class__ is dict and "type" in inner_block
            ]
            yield from _in_blocks(inner, f"{block_path}.content", takes_marks=False)
        source = block["source"] if "source" in block else None  # noqa: SIM401 - saves a call
        if source.__class__ is dict and source.get("content").__class__ is list:
            yield from _in_blocks(
                source["content"], f"{block_path}.source.content", takes_marks=has_place
            )
