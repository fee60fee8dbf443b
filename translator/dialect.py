"""What every upstream dialect offers, and what passes between its two halves.

A dialect turns one Anthropic request into an upstream body (``build_request``) and the upstream's
answer back into Anthropic events (``Stream``). What the second half must know of the first
travels in an ``AnswerContext``; who answers is a ``Target``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from .anthropic.types import Event, MessagesRequest
from .anthropic.usage import Usage
from .carrier import CarrierKeys
from .notes import Note
from .profiles import Profile
from .unknown_events import UnknownEvents


@dataclass(slots=True, kw_only=True)  # not frozen: that would be a call for each field
class Target:
    """Who will answer: an upstream, one of its models, and what it can do."""

    upstream: str = ""
    """The upstream's name: reasoning goes back only to the upstream that made it."""
    model: str = ""
    profile: Profile = field(default_factory=Profile)
    carrier_keys: CarrierKeys | None = None
    """Keys that sign reasoning carriers; None: reasoning is shown but not carried."""
    session: str = ""
    """The client's session, where a header names it: one session uses one cache upstream."""


NO_FIELDS: Final[frozenset[str]] = frozenset()
"""One for all: empty, it takes 216 bytes."""


@dataclass(slots=True, kw_only=True)
class AnswerContext:
    """What the translator of the answer must know of the request. The defaults fit no request.

    Whoever asks fills in what it alone knows (the message's id) before the stream is made.
    """

    message_id: str = ""
    """Our ``msg_…`` id; empty: taken from the upstream's own id."""
    model: str = ""
    """The model name that the client asked for; empty: the upstream's."""
    target: Target = field(default_factory=Target)
    tool_names: Mapping[str, str] = field(default_factory=dict)
    """Upstream's tool name -> client's, where they differ (names beyond 64 characters)."""
    optional_properties: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Client's tool name -> properties made nullable for strict mode; null is removed again."""
    stop_sequences: tuple[str, ...] = ()
    """Stop sequences that the gateway must find itself, by holding text back."""
    thinking: Literal["shown", "omitted", "hidden"] = "shown"
    """Reasoning with its text; as signature-only blocks; or not at all (nobody asked)."""
    call_ids: frozenset[str] = frozenset()
    """Ids of the tool calls in the history: a new call must not get one of them."""
    single_tool_call: bool = False
    """The client forbade parallel calls and the upstream may ignore that: keep the first."""
    max_tokens: int | None = None
    answered: frozenset[str] = NO_FIELDS
    """Fields of the request that its answer speaks of, as ``draft.ANSWERED`` tells."""
    compacts: bool = False
    """The client asked for compaction and the upstream does it: its item goes back as a block."""
    finished_blocks: bool = False
    """``content_block_stop`` carries the finished block (opt-in extra ``blocks``)."""
    input_estimate: int = 0
    """Estimated input tokens, for ``message_start`` (OpenAI reports usage only at the end)."""


@dataclass(slots=True, kw_only=True)  # likewise
class UpstreamRequest:
    """One translated request: the body to POST, what was lost or bent, and the way back."""

    body: dict[str, Any]
    notes: tuple[Note, ...] = ()
    answer: AnswerContext = field(default_factory=AnswerContext)
    known_answer: dict[str, Any] | None = None
    """The upstream's whole answer, where it is known without asking; nothing is sent then."""
    origins: tuple[int, ...] = ()
    """For each entry of the body's history: the number of the client's message that it tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A body to send once more after the upstream refused the first, and what it cost."""

    body: dict[str, Any]
    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamError:
    """An upstream's failure in Anthropic's terms. ``message`` is safe to show to a client."""

    status: int
    error_type: str
    message: str
    should_retry: bool | None = None
    """Sent as ``x-should-retry``; None: the client's own rule holds."""
    retry_after_s: int | None = None
    refusal_category: str | None = None
    """Set where the failure is a policy refusal: a message with stop_reason ``refusal``."""
    is_refusal: bool = False
    param: str | None = None
    code: str = ""
    """The upstream's own name of the failure, for the log; never a text."""


class Stream(Protocol):
    """The machine that hears one upstream answer and speaks one Anthropic stream.

    ``feed`` takes decoded upstream events, ``end`` says that the bytes ended. Both return the
    Anthropic events that follow, in order, already legal by the grammar of ``MessageWriter``;
    they never raise on upstream's input. ``finished`` is true once ``message_stop`` or ``error``
    was returned, and what is fed behind it says nothing; the caller then stops reading (and closes
    the upstream call).
    """

    notes: list[Note]
    unknown: UnknownEvents
    fault: Exception | None
    error: UpstreamError | None
    """Why the stream ended in an ``error`` event; None while it runs or when it ended well."""
    stop_reason: str | None
    upstream_id: str
    upstream_model: str

    @property
    def usage(self) -> Usage: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, *events: dict[str, Any]) -> list[Event]: ...
    def feed_whole(self, body: dict[str, Any]) -> list[Event]:
        """Take a whole (non-streamed) answer; the stream is finished afterwards."""
        ...

    def end(self) -> list[Event]: ...
    def fail(self, error: UpstreamError) -> list[Event]:
        """End the stream for a cause outside the upstream's events (timeout, reset, shutdown)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One upstream dialect: where to POST and the functions that translate."""

    name: str
    path: str
    """Appended to the upstream's base URL."""
    build_request: Callable[[MessagesRequest, Target], UpstreamRequest]
    stream: Callable[[AnswerContext], Stream]
    map_error: Callable[[int, Any], UpstreamError]
    """HTTP status and decoded error body (dict, list, str or None) -> UpstreamError."""
    repair: Callable[[dict[str, Any], int, Any], Repair | None]
    """Sent body, status, decoded error body -> what to try once instead; None: nothing."""
