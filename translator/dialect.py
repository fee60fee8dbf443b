"""The interface of an upstream dialect (target API), and data of the request and the response.

A dialect turns one Anthropic request into an upstream body (``build_request``) and the upstream's
response back into Anthropic events (``Stream``). A ``ResponseContext`` carries the request data
that the translation of the response needs; a ``TranslationTarget`` names the upstream and its
model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from translator.anthropic import Event, MessagesRequest
from translator.anthropic.usage import Usage
from translator.capabilities import Profile
from translator.notes import Note
from translator.stream.reasoning_signature import SignedReasoning, SigningKeys, sign, verify

MAX_KINDS: Final = 50
MAX_KIND_CHARACTERS: Final = 100
OTHERS: Final = "(others)"


class UnknownEvents(dict[str, int]):
    """Number of events by unknown type, for one stream; change it only with ``add``.

    An upstream could send a different type with each event, of any length, so the number of types
    and their length are limited.
    """

    def add(self, kind: str) -> None:
        kind = kind[:MAX_KIND_CHARACTERS]
        if kind not in self and len(self) >= MAX_KINDS:
            kind = OTHERS
        self[kind] = self.get(kind, 0) + 1


class UpstreamCall(NamedTuple):
    """What must go back to the upstream with a tool call, but did not fit into its id."""

    id: str
    """The upstream's id of the call; "" if it follows from the id that the client has."""
    fields: dict[str, Any]
    """Fields of the call, and the reasoning before it that the client does not see."""


RecordedCalls = Mapping[str, UpstreamCall | None]
"""The record of a session's calls, by ``id_mapping.record_name``. The value None means that the
call's entry expired or exceeded a limit of the record."""


# The class is not frozen, because freezing would cost a call for each field.
@dataclass(slots=True, kw_only=True)
class TranslationTarget:
    """The upstream and model that a request is translated for, with their capabilities."""

    upstream: str = ""
    """The upstream's configured name. Reasoning is sent back only to the upstream that produced
    it."""
    model: str = ""
    profile: Profile = field(default_factory=Profile)
    signing_keys: SigningKeys | None = None
    """Keys that sign reasoning; None: the client sees reasoning, but cannot send it back later."""
    session: str = ""
    """The client's session id, if a request header contains one. All requests of a session use the
    same prompt cache key."""
    recorded_calls: RecordedCalls | None = None
    """What the caller recorded of the session's earlier calls to this upstream and model. None: the
    caller keeps no record, so what an id cannot carry is lost, with a note."""

    def sign(self, api: str, **fields: Any) -> str:
        """Return the signature of reasoning with these ``fields``; "" without signing keys."""
        if self.signing_keys is None:
            return ""
        reasoning = SignedReasoning(upstream=self.upstream, model=self.model, api=api, **fields)
        return sign(reasoning, self.signing_keys)

    def verify(self, signature: str, api: str) -> SignedReasoning | None:
        """Return the reasoning in a signature if this upstream and model produced it."""
        signed = verify(signature, self.signing_keys) if self.signing_keys is not None else None
        is_own = signed is not None and (signed.api, signed.upstream, signed.model) == (
            api,
            self.upstream,
            self.model,
        )
        return signed if is_own else None


class AnswerForm(NamedTuple):
    """How a structured output differs from the client's schema."""

    wrapped: bool = False
    """Whether the answer is the ``message_composer.ANSWER_FIELD`` of an object around it."""
    optional: frozenset[str] = frozenset()
    """Paths of properties that may be null instead of absent, as in ``StrictSchema``."""


NO_FIELDS: Final[frozenset[str]] = frozenset()
"""One shared object, because an empty frozenset takes 216 bytes."""


@dataclass(slots=True, kw_only=True)
class ResponseContext:
    """Data of the request that the translation of its response needs.

    The defaults describe an empty request. The caller sets the values that only the caller knows
    (such as the message id) before it creates the stream.
    """

    message_id: str = ""
    """The gateway's ``msg_…`` id; if empty, the id is derived from the upstream's id."""
    model: str = ""
    """The model name in the client's request; if empty, the response has the upstream's model
    name."""
    target: TranslationTarget = field(default_factory=TranslationTarget)
    tool_names: Mapping[str, str] = field(default_factory=dict)
    """Tool name sent upstream -> the client's tool name, where they differ (above 64
    characters)."""
    declared_tools: frozenset[str] = NO_FIELDS
    """The client's names of its tools."""
    optional_properties: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Tool name -> properties that OpenAI's strict mode made nullable; nulls of these properties
    are removed from the tool's arguments."""
    answer: AnswerForm | None = None
    """The form of a structured output that must be changed back; None: the text is sent as it is.
    Otherwise each text block is sent as one piece, at its end."""
    stop_sequences: tuple[str, ...] = ()
    """Stop sequences that the gateway searches for in the text itself, instead of the upstream."""
    thinking: Literal["shown", "omitted", "hidden"] = "shown"
    """How reasoning is returned: ``shown``: thinking blocks with text; ``omitted``: thinking blocks
    with a signature only; ``hidden``: no thinking blocks."""
    call_ids: frozenset[str] = frozenset()
    """Ids of the tool calls in the request's history. A new call must not reuse one of these
    ids."""
    single_tool_call: bool = False
    """Whether the client disabled parallel tool calls. The upstream may ignore that, so only the
    first call of the response is returned."""
    max_tokens: int | None = None
    reported_fields: frozenset[str] = NO_FIELDS
    """Request fields whose effect the response must report (see ``builder.REPORTED_FIELDS``)."""
    returns_compaction: bool = False
    """Whether the client requested compaction and the upstream supports it. If so, the upstream's
    compaction item is returned as a content block."""
    unrequested_items: frozenset[str] = NO_FIELDS
    """Types of hosted tool calls that the client did not request. If the upstream makes such calls
    all the same, they are dropped, because the client's API has no such blocks."""
    finished_blocks: bool = False
    """Whether ``content_block_stop`` contains the finished block (an extension to be requested)."""
    whole: bool = False
    """Whether the client gets the response as one message, and has seen none of it before."""
    input_estimate: int = 0
    """Estimated input tokens, for ``message_start`` (OpenAI reports usage only at the end of a
    stream)."""


class Origin(NamedTuple):
    """Where in the client's request an entry of the upstream's history came from.

    Paths of nested blocks are without the types of the outer blocks, but end with the type of the
    block: ``messages.2.content.0.content.1.image``.
    """

    path: str
    """``system``, a message (``messages.2``) or one block of it; "" if it came from several."""
    parts: tuple[str, ...] = ()
    """The blocks that its content parts came from; "" for a part from several blocks."""
    calls: tuple[str, ...] = ()
    """Chat Completions only: the blocks that its tool calls came from."""


# The class is not frozen, because freezing would cost a call for each field.
@dataclass(slots=True, kw_only=True)
class UpstreamRequest:
    """One translated request: the body to send, its notes, and the context for the response."""

    body: dict[str, Any]
    notes: tuple[Note, ...] = ()
    response_context: ResponseContext = field(default_factory=ResponseContext)
    local_response: dict[str, Any] | None = None
    """The upstream's complete response, if it is known in advance; then no request is sent
    upstream."""
    origins: tuple[Origin, ...] = ()
    """For each entry of the body's history: where in the client's request it came from."""


class Lesson(NamedTuple):
    """What an upstream's refusal shows about its model: an edit that its request bodies need."""

    edit: str
    """A name in ``body_edits.EDITS``."""
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A changed body for one retry after an upstream's error response, and notes on the changes."""

    body: dict[str, Any]
    notes: tuple[Note, ...]
    lessons: tuple[Lesson, ...] = ()
    """What later requests to this model need as well, if the changed body is accepted."""
    words: str = ""
    """The upstream's code, path or words that the repair was read from, without the client's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamError:
    """An upstream's failure in Anthropic's terms. ``message`` is safe to send to a client."""

    status: int
    error_type: str
    message: str
    should_retry: bool | None = None
    """The value of the ``x-should-retry`` header; If it is None, there is no header, and the client
    applies its own rule."""
    retry_after_s: int | None = None
    refusal_category: str | None = None
    """Anthropic's refusal category, if the upstream's content policy rejected the prompt: the
    client then gets a message with stop_reason ``refusal``."""
    is_refusal: bool = False
    exceeds_quota: bool = False
    """The request alone exceeds what the account may use in a time; another target may take it."""
    param: str | None = None
    code: str = ""
    """The upstream's error code, for the log; always an identifier, never free text."""


class Stream(Protocol):
    """A state machine that turns one upstream response into one Anthropic stream.

    ``feed`` takes decoded upstream events; ``end`` marks the end of the upstream's bytes. Both
    return the resulting Anthropic events, in a valid order, and never raise on upstream data.
    ``finished`` is true once ``message_stop`` or ``error`` was returned; later events have no
    effect, so the caller stops reading and closes the upstream response.
    """

    notes: list[Note]
    unknown: UnknownEvents
    fault: Exception | None
    error: UpstreamError | None
    """The failure behind the stream's ``error`` event; None if the stream has no such event."""
    stop_reason: str | None
    upstream_id: str
    upstream_model: str
    call_records: dict[str, UpstreamCall]
    """What the caller must record for later requests of the session, by ``record_name``."""

    @property
    def usage(self) -> Usage: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, *events: dict[str, Any]) -> list[Event]: ...
    def feed_body(self, body: dict[str, Any]) -> list[Event]:
        """Process a complete, non-streamed response; the stream is finished afterwards."""
        ...

    def end(self) -> list[Event]: ...
    def fail(self, error: UpstreamError) -> list[Event]:
        """End the stream for a cause other than an upstream event (timeout, reset, shutdown)."""
        ...


TextLocation = tuple[str, int, int]
"""The content that a text delta extends: item id, output index and content index. All text of Chat
Completions has one place; there, these are the chunk's id, 1 if the delta has the role, and 0."""


class TextStream(Stream, Protocol):
    """A stream that takes plain text deltas, nearly all events, without their other fields."""

    @property
    def started(self) -> bool:
        """Whether ``message_start`` was returned. Before that, each event is needed as a whole."""
        ...

    def feed_text(self, location: TextLocation, text: str) -> list[Event]:
        """Process text deltas of one location, whose texts are joined, like events in ``feed``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One upstream API: its endpoint path and its translation functions."""

    name: str
    path: str
    """The endpoint's path, relative to the upstream's base URL."""
    build_request: Callable[[MessagesRequest, TranslationTarget], UpstreamRequest]
    stream: Callable[[ResponseContext], Stream]
    map_error: Callable[[int, Any], UpstreamError]
    """Maps an HTTP status and a decoded error body (dict, list, str or None) to an
    UpstreamError."""
    repair: Callable[[dict[str, Any], int, Any], Repair | None]
    """Maps the sent body, the error's HTTP status and its decoded body to a changed body for one
    retry; None if no retry can help."""
