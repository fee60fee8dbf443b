"""The records that the gateway writes of a request: an open record, chunks, and a close record.

They are plain data without Django (msgspec Structs, stored as MessagePack): the event loop creates
them while it serves requests, and a background thread converts them to database rows. Times are
Unix seconds (float, UTC); durations are milliseconds; money is nano-dollars. A field with its
default value is not written, which saves a tenth of the time and 0.3 KB of the 2 KB of a request.
Therefore a default must not change while there are journals that were written with it.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from proxy.encryption.bodies import require_decrypted


class OpenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="open"):
    """The first record of a request. It is durable before the upstream is called."""

    id: str  # "req_" + ULID
    created: float
    worker: str
    team: str  # Team.ledger_id
    key_id: int | None
    key_name: str = ""  # only in the records of earlier versions
    user: str = ""  # Person.pk
    session_id: str = ""
    agent_id: str = ""
    parent_agent_id: str = ""
    ip: str | None = None
    user_agent: str = ""
    client_name: str = ""
    client_version: str = ""
    api_version: str = ""
    betas: list[str] = []
    tags: dict[str, str] = {}
    traceparent: str = ""
    endpoint: str = "messages"
    stream: bool = False
    model_requested: str = ""
    model_upstream: str = ""
    upstream: str = ""
    dialect: str = ""
    request_bytes: int = 0
    message_count: int = 0  # used only without ``body``: with it, messages are counted later
    has_images: bool = False  # used only without ``body``
    # To translate the request again: {upstream, model, dialect, profile, capabilities}
    target: dict[str, Any] = {}
    body: bytes | None = None  # the request body as received; None: the team stores metadata only
    # With a hard budget, this is the usage to charge if no close record is written; see
    # CloseRecord.usage.
    worst_case: dict[str, Any] = {}
    faulty: bool = False  # the gateway rejected the request: its body may have any structure


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="chunk"):
    """The raw bytes that the upstream sent in the last second of a running response."""

    id: str
    reads: list[tuple[float, bytes]]  # (milliseconds since the attempt began, bytes as read)
    attempt: int = 0  # number of the upstream attempt; the response is that of the highest number
    target: dict[str, Any] = {}  # as in OpenRecord, if this attempt has another target
    status: int = 200  # HTTP status of the upstream; if not 200, the reads are an error body


class CloseRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="close"):
    """How a request ended. Exactly one is written for each accepted request, however it ends."""

    id: str
    finished: float
    outcome: str  # a value of proxy.models.Outcome
    status: int
    stop_reason: str = ""
    error_type: str = ""
    error_message: str = ""
    error_source: str = ""
    detail: str = ""
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    upstream_ms: float | None = None
    overhead_ms: float | None = None
    model_upstream: str = ""
    upstream: str = ""
    dialect: str = ""
    upstream_status: int | None = None
    upstream_request_id: str = ""
    attempts: list[dict[str, Any]] = []
    notes: list[dict[str, str]] = []
    unknown_events: dict[str, int] = {}
    # The fields of the translator's Usage as dataclasses.asdict returns them. If token classes have
    # different sources, also "input_source", "output_source", "cache_read_source", …
    usage: dict[str, Any] = {}
    cost_nanousd: int | None = None  # set together with ``price``: the gateway computed the cost
    # None: the price is looked up when the database row is written.
    price: dict[str, Any] | None = None
    tool_calls: int = 0  # used only without ``answer``: with it, tool calls are counted later
    tool_names: list[str] = []  # used only without ``answer``
    has_thinking: bool = False  # used only without ``answer``
    response_bytes: int = 0
    delivered: bool = True
    upstream_request_sha256: str = ""
    target: dict[str, Any] = {}  # as in OpenRecord: the target of the last attempt
    attempt: int = 0  # number of the last upstream attempt, whose bytes ``reads`` contains
    reads: list[tuple[float, bytes]] = []  # as in Chunk: the bytes after the last Chunk record
    # The response as one Anthropic message; None: no content came, or the team stores metadata only
    answer: dict[str, Any] | None = None


Record = OpenRecord | Chunk | CloseRecord
OPEN: Final = 0
CHUNK: Final = 1
CLOSE: Final = 2
KIND: Final = {OpenRecord: OPEN, Chunk: CHUNK, CloseRecord: CLOSE}

_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Return the record as MessagePack; never raises, whatever a client or an upstream sent.

    Values that MessagePack cannot represent are written as escaped text: integers beyond 64 bits
    (in the arguments of a tool call) and unpaired surrogates (an upstream's header may contain any
    byte).
    """
    try:
        return _encode(record)
    except (OverflowError, UnicodeEncodeError):
        return _encode(to_msgpack_safe(msgspec.to_builtins(record, builtin_types=(bytes,))))


def to_msgpack_safe(value: Any) -> Any:
    """Return the value with text in place of all values that MessagePack cannot represent."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int() if not -(2**63) <= value < 2**64:
            return str(value)
        case dict():
            return {to_msgpack_safe(name): to_msgpack_safe(each) for name, each in value.items()}
        case list() | tuple():
            return [to_msgpack_safe(each) for each in value]
    return value


def decode(body: bytes) -> Record:
    """Decode a record. Raises ``msgspec.DecodeError`` if the bytes are not a record.

    Raises MissingBodyKey or DamagedBody if they are still encrypted.
    """
    require_decrypted(body)
    return _decoder.decode(body)
