"""What the builders of one upstream request share, whatever the dialect.

OpenAI's two APIs name the user, the tier and what the answer's half must know alike.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from .anthropic.request import FIELDS
from .anthropic.shapes import shortened
from .anthropic.types import MessagesRequest
from .dialect import NO_FIELDS, AnswerContext, Target
from .errors import BadRequest
from .notes import Fate, Note
from .profiles import Effort, Profile
from .thinking import end_of_last_words, thinking_shown

SESSION: Final = re.compile(r"session_([0-9A-Za-z-]+)$")
"""Claude Code ends ``metadata.user_id`` with the session's id."""


SYSTEM: Final = -1
"""The origin of what was built from the system prompt, where others have a message's number."""


class Draft:
    """One request on its way: who asks what of whom, and what was found out under way."""

    def __init__(self, request: MessagesRequest, target: Target) -> None:
        self.request = request
        self.target = target
        self.profile: Profile = target.profile  # looked at for nearly every block
        self.notes: dict[Note, None] = {}  # each once, in order: every block may have its own
        self.tool_names: dict[str, str] = {}  # upstream's -> client's, where bent
        self.optional_properties: dict[str, frozenset[str]] = {}
        self.origins: list[int] = []
        """For each entry of the history its message's number; ``SYSTEM`` for the system prompt."""
        self.effort: tuple[Effort, str] | None = None  # in force by a message, and its path
        self.include: list[str] = []  # Responses: extra parts to ask for
        self.system_additions: list[str] = []  # Chat: join the system message

    def note(self, path: str, fate: Fate, reason: str) -> None:
        self.notes[Note(path, fate, reason)] = None

    # What is looked for in the whole request is looked for once, not for each block of it.

    @cached_property
    def last_user_message(self) -> int:
        """The number of the last message of the user; -1: there is none."""
        messages = self.request["messages"]
        numbers = range(len(messages) - 1, -1, -1)
        return next((number for number in numbers if messages[number]["role"] == "user"), -1)

    @cached_property
    def effort_until(self) -> int:
        """The number of the message until which an effort holds for the answer to come."""
        return end_of_last_words(self.request["messages"])

    @cached_property
    def mcp_server_names(self) -> frozenset[str]:
        return frozenset(server["name"] for server in self.request.get("mcp_servers") or ())


MOST_SHOWN: Final = 5  # of the fields that nobody knows


Builder = Callable[[Draft], dict[str, Any]]
Builders = tuple[tuple[Builder, tuple[str, ...]], ...]


def in_order(built: Mapping[str, Builder], also: Mapping[Builder, tuple[str, ...]]) -> Builders:
    """Each builder of a dialect's table once, in its order, with the fields that call for it.

    ``also`` are fields that a builder reads although they are another one's.
    """
    fields: dict[Builder, tuple[str, ...]] = {}
    for name, build in built.items():
        fields[build] = (*fields.get(build, also.get(build, ())), name)
    return tuple(fields.items())


def build_fields(draft: Draft, builders: Builders) -> dict[str, Any]:
    """What the builders make of the fields that the request has."""
    request = draft.request
    body: dict[str, Any] = {}
    for build, names in builders:
        for name in names:
            if name in request:
                body |= build(draft)
                break
    return body


def turn_away(
    draft: Draft, refused: Mapping[str, str], dropped: Mapping[str, str], harmless: frozenset[str]
) -> None:
    """Refuse and drop whole fields by a dialect's tables. Raises BadRequest."""
    for name, reason in refused.items():
        if draft.request.get(name) and not _is_kept_to(draft, name):
            raise BadRequest(name, reason)
    for name, reason in dropped.items():
        if draft.request.get(name):
            draft.note(name, "ignored" if name in harmless else "dropped", reason)
    if unknown := [name for name in draft.request if name not in FIELDS and name not in dropped]:
        # Clients choose these names: quoted, they leave the books of who wants no words kept.
        shown = "', '".join(shortened(name).replace("'", "?") for name in unknown[:MOST_SHOWN])
        told = f"nobody here knows {len(unknown)} of its fields: '{shown}'"
        draft.note("request", "dropped", told)


def _is_kept_to(draft: Draft, name: str) -> bool:
    """A region that the upstream is set up for may be demanded; ``global`` demands none."""
    wanted = draft.request[name]
    return name == "inference_geo" and wanted in ("global", *draft.profile.inference_geos)


def context_edits(request: MessagesRequest) -> list[tuple[int, dict[str, Any]]]:
    """The edits of ``context_management`` that do anything, with their places.

    Claude Code asks with each request that no thinking be cleared.
    """
    edits = (request.get("context_management") or {}).get("edits") or []
    return [
        (number, edit)
        for number, edit in enumerate(edits)
        if edit.get("keep") != "all" or not str(edit.get("type")).startswith("clear_thinking_")
    ]


def identity(draft: Draft) -> dict[str, Any]:
    """The user's id as a hash, and the session as a cache key: neither leaves in the clear."""
    if "metadata" not in draft.request and not draft.target.session:
        return {}
    user = (draft.request.get("metadata") or {}).get("user_id") or ""
    profile = draft.profile
    fields: dict[str, Any] = {}
    if user and profile.safety_identifier:
        fields["safety_identifier"] = _hash(user)
    elif user and profile.user_field:
        fields["user"] = _hash(user)
    session = draft.target.session or (user and _session(user))
    if session and profile.prompt_cache_key:
        fields["prompt_cache_key"] = _hash(session)
    if user and fields:
        draft.note("metadata.user_id", "renamed", "sent as a hash")
    elif user:
        draft.note("metadata.user_id", "ignored", "this upstream takes no user id")
    return fields


def tier(draft: Draft) -> dict[str, Any]:
    wanted, speed = draft.request.get("service_tier"), draft.request.get("speed")
    if not draft.profile.service_tier:
        if wanted:
            draft.note("service_tier", "ignored", "this upstream has no service tiers")
        if speed == "fast":
            draft.note("speed", "dropped", "this upstream has no fast tier")
        return {}
    if speed == "fast":
        return {"service_tier": "fast"}
    return {"service_tier": "default" if wanted == "standard_only" else "auto"} if wanted else {}


def answer_context(draft: Draft, **known: Any) -> AnswerContext:
    """What the translator of the answer must know of this request."""
    request = draft.request
    choice = request.get("tool_choice") or {}
    return AnswerContext(
        model=request["model"],
        target=draft.target,
        tool_names=draft.tool_names,
        optional_properties=draft.optional_properties,
        stop_sequences=_stop_sequences(request),
        thinking=thinking_shown(request) if "thinking" in request else "hidden",
        single_tool_call=bool(choice.get("disable_parallel_tool_use")),
        call_ids=_call_ids(request),
        max_tokens=request.get("max_tokens"),
        answered=NO_FIELDS if ANSWERED.isdisjoint(request) else _answered(request),
        **known,
    )


MAX_STOP_SEQUENCES: Final = 64
MAX_STOP_CHARACTERS: Final = 4_096
"""Of all of them: each is looked for in each piece of the answer."""


def _stop_sequences(request: MessagesRequest) -> tuple[str, ...]:
    sequences = tuple(request.get("stop_sequences") or ())
    if len(sequences) > MAX_STOP_SEQUENCES or sum(map(len, sequences)) > MAX_STOP_CHARACTERS:
        raise BadRequest(
            "stop_sequences",
            f"this route takes at most {MAX_STOP_SEQUENCES} sequences"
            f" of {MAX_STOP_CHARACTERS} characters in all",
        )
    return sequences


ANSWERED: Final = frozenset({"context_management", "diagnostics", "speed"})
"""Applied edits, cache diagnostics and how fast it was are told to whoever asked for them."""


def _answered(request: MessagesRequest) -> frozenset[str]:
    given = {name for name in ANSWERED if request.get(name)}
    return frozenset(given if request.get("speed") == "fast" else given - {"speed"})


def answered_here(draft: Draft, nothing: dict[str, Any]) -> dict[str, Any]:
    """``nothing``, for a client that wants no tokens but a warm cache, which cannot be warmed."""
    draft.note("max_tokens", "emulated", "answered by the gateway: there is no cache to warm")
    return nothing


NO_IDS: Final[frozenset[str]] = frozenset()
"""One for all: empty, it takes 216 bytes."""


def _call_ids(request: MessagesRequest) -> frozenset[str]:
    ids: list[str] = []
    for message in request["messages"]:
        if message["role"] == "assistant" and not isinstance(message["content"], str):
            ids += [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    return frozenset(ids) if ids else NO_IDS


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _session(user: str) -> str | None:
    """The session inside a user id: Claude Code writes it at the end, or the whole as JSON."""
    if match := SESSION.search(user):
        return match[1]
    if "{" not in user:  # to fail as JSON takes ten times as long
        return None
    try:
        parsed = json.loads(user)
    except ValueError:
        return None
    session = parsed.get("session_id") if isinstance(parsed, dict) else None
    return session if isinstance(session, str) else None
