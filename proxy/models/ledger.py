"""The ledger: a row for each accepted request, its transcript in parts, and the hash chain."""

from collections.abc import Sequence

from django.db import models
from django.utils.functional import cached_property

from .encrypted_text import BodyTextField
from .ledger_names import CallerNames, LedgerNames


class State(models.TextChoices):
    OPEN = "open"
    CLOSED = "closed"


class Outcome(models.TextChoices):
    """How a request ended; each closed row has an outcome."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    REFUSED = "refused"
    GATEWAY_ERROR = "gateway_error"
    INTERRUPTED = "interrupted"  # the gateway's process died during the request
    DRAINED = "drained"  # ended by an orderly shutdown of the gateway


FAILED = ~models.Q(outcome__in=(Outcome.COMPLETED, Outcome.CLIENT_GONE, ""))
"""Matches the rows of requests that failed; "" is the outcome of a running request."""
HAS_TOKENS = models.Q(input_tokens__isnull=False) | models.Q(output_tokens__isnull=False)
"""Matches rows with known token counts."""
UNPRICED = models.Q(state=State.CLOSED, cost_nanousd=None) & HAS_TOKENS
"""Matches the rows of requests that used tokens but have no cost, because no price is known."""


class TokenSource(models.TextChoices):
    REPORTED = "reported"
    ESTIMATED = "estimated"
    MISSING = "missing"


def token_count_field() -> "models.BigIntegerField[int | None, int | None]":
    return models.BigIntegerField(null=True)  # null: the number of tokens is unknown


def token_source_field() -> "models.CharField[str, str]":
    return models.CharField(max_length=9, choices=TokenSource.choices, default=TokenSource.MISSING)


class Exchange(models.Model):
    """A client's request and its result.

    Team, key and person are stored by id, see ``ledger_names``, and upstreams by name, without
    foreign keys, so rows stay when these are deleted.
    """

    id = models.CharField(max_length=30, primary_key=True)  # "req_" + ULID; sorted by time
    state = models.CharField(max_length=6, choices=State.choices, default=State.OPEN)
    outcome = models.CharField(max_length=16, choices=Outcome.choices, blank=True)
    # HTTP status of the response that the client got.
    status = models.PositiveSmallIntegerField(null=True)
    stop_reason = models.CharField(max_length=40, blank=True)
    error_type = models.CharField(max_length=40, blank=True)
    error_message = BodyTextField(blank=True)  # may quote the request
    error_source = models.CharField(max_length=8, blank=True)  # client | gateway | upstream
    detail = models.CharField(max_length=200, blank=True)  # cause of an error, such as bad_event

    created = models.DateTimeField()  # time when the request was accepted
    finished = models.DateTimeField(null=True)  # null: the row is open
    queue_ms = models.FloatField(null=True)
    # Milliseconds from ``created`` to the first byte of content.
    ttft_ms = models.FloatField(null=True)
    total_ms = models.FloatField(null=True)
    upstream_ms = models.FloatField(null=True)
    overhead_ms = models.FloatField(null=True)  # time in the gateway before the upstream call

    team = models.CharField(max_length=64)  # Team.ledger_id
    key_id = models.BigIntegerField(null=True)  # ApiKey.pk; no foreign key: keys may be deleted
    # Only in rows of earlier versions, whose digests cover it: the name is shown by ``key_id``.
    key_name = models.CharField(max_length=64, blank=True)
    user = models.CharField(max_length=150, blank=True)  # Person.pk; empty: a key of the team
    session_id = models.CharField(max_length=200, blank=True)
    agent_id = models.CharField(max_length=200, blank=True)
    parent_agent_id = models.CharField(max_length=200, blank=True)
    ip = models.GenericIPAddressField(null=True)
    user_agent = models.CharField(max_length=300, blank=True)
    client_name = models.CharField(max_length=64, blank=True)
    client_version = models.CharField(max_length=32, blank=True)
    api_version = models.CharField(max_length=10, blank=True)
    betas = models.JSONField(default=list)
    tags = models.JSONField(default=dict)
    traceparent = models.CharField(max_length=100, blank=True)
    endpoint = models.CharField(max_length=16, default="messages")
    stream = models.BooleanField(default=False)

    model_requested = models.CharField(max_length=200)
    model_upstream = models.CharField(max_length=200, blank=True)
    upstream = models.CharField(max_length=64, blank=True)
    dialect = models.CharField(max_length=16, blank=True)
    upstream_status = models.PositiveSmallIntegerField(null=True)
    upstream_request_id = models.CharField(max_length=200, blank=True)
    # Attempts to call an upstream: [{upstream, model, status, error, ms}]
    attempts = models.JSONField(default=list)
    # Fields that the translation dropped or changed: [{path, fate, reason}]
    notes = models.JSONField(default=list)
    unknown_events = models.JSONField(default=dict)  # unknown upstream events: {type: count}

    # Without the tokens that were read from or written to the prompt cache.
    input_tokens = token_count_field()
    input_source = token_source_field()
    output_tokens = token_count_field()  # including reasoning tokens
    output_source = token_source_field()
    cache_read_tokens = token_count_field()
    cache_read_source = token_source_field()
    cache_write_5m_tokens = token_count_field()
    cache_write_1h_tokens = token_count_field()
    cache_write_source = token_source_field()
    reasoning_tokens = token_count_field()
    reasoning_source = token_source_field()
    web_searches = models.PositiveIntegerField(null=True)
    service_tier = models.CharField(max_length=32, blank=True)
    speed = models.CharField(max_length=32, blank=True, default="")
    inference_geo = models.CharField(max_length=32, blank=True, default="")
    # The billed samplings of a request that the upstream answered in several, whose sums the token
    # counts above are: [{type, model, input, output, cache_read, cache_write_5m, cache_write_1h}]
    iterations = models.JSONField(default=list)
    # null: the cost is unknown; 0: the request is free.
    cost_nanousd = models.BigIntegerField(null=True)
    price = models.JSONField(null=True)  # the price that applied: {"id", "since", "input", …}

    message_count = models.PositiveIntegerField(default=0)
    tool_calls = models.PositiveIntegerField(default=0)
    tool_names = models.JSONField(default=list)
    has_images = models.BooleanField(default=False)
    has_thinking = models.BooleanField(default=False)
    # What the request adds: the first words of the newest message, or the tool calls with results.
    preview = BodyTextField(max_length=200, blank=True)
    # The first words of the user's last message, in this request or before it.
    prompt = BodyTextField(max_length=200, blank=True)
    request_bytes = models.PositiveBigIntegerField(default=0)
    response_bytes = models.PositiveBigIntegerField(default=0)
    # false: the response was complete, but the client had disconnected
    delivered = models.BooleanField(default=True)
    worker = models.CharField(max_length=64, blank=True)  # id of the gateway process
    # id of the previous request of the conversation
    previous_id = models.CharField(max_length=30, blank=True)
    # index of the first message after those of the previous request
    new_from = models.PositiveIntegerField(default=0)

    class Meta:
        verbose_name = "request"
        ordering = ["-id"]
        indexes = [
            # A covering index by time: a search for rare rows (by status or cost, for example)
            # scans only the index, and reads only matching rows from the table.
            models.Index(
                fields=[
                    "created",
                    "status",
                    "outcome",
                    "stop_reason",
                    "model_requested",
                    "upstream",
                    "user",
                    "cost_nanousd",
                    "total_ms",
                ],
                name="exchange_by_time",
            ),
            models.Index(fields=["team", "created"]),
            models.Index(fields=["key_id", "created"]),
            models.Index(fields=["session_id", "created"]),
            models.Index(fields=["state", "created"]),
            models.Index(
                fields=["error_type", "created"],
                condition=~models.Q(error_type=""),
                name="exchange_by_error",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="exchange_finished_iff_closed",
                condition=models.Q(state="open", finished=None, outcome="")
                | models.Q(state="closed", finished__isnull=False) & ~models.Q(outcome=""),
            )
        ]

    def __str__(self) -> str:
        return self.id

    @cached_property
    def names(self) -> CallerNames:
        """The names of the team, key and person; ``with_names`` looks up those of many rows."""
        self.load_names([self], LedgerNames())
        names: CallerNames = self.__dict__["names"]
        return names

    @staticmethod
    def load_names(rows: "Sequence[Exchange]", names: LedgerNames) -> None:
        callers = ((row.team, row.key_id, row.user) for row in rows)
        for row, own in zip(rows, names.of_callers(callers), strict=True):
            row.__dict__["names"] = own if own.key else own._replace(key=row.key_name)


class Part(models.Model):
    """A piece of transcripts, such as a message, stored once even if many requests contain it.

    ``data`` is JSON compressed with zstd, and encrypted if there is a body key. The manifests of
    transcripts refer to parts by ``id``.
    """

    id = models.BigAutoField(primary_key=True)
    # SHA-256 of the uncompressed bytes; of an encrypted part, an HMAC of it.
    digest = models.BinaryField(max_length=32, unique=True)
    size = models.PositiveBigIntegerField()  # bytes before compression
    data = models.BinaryField()
    # Time of the last request that stored the part, to the hour; used for pruning.
    used = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"part {self.pk} ({self.size} bytes)"


class Transcript(models.Model):
    """A request and its response: a manifest that refers to parts, and the upstream's raw stream.

    A transcript is deleted when the retention of its team ends. Only
    ``proxy.ledger.transcripts.storage`` encodes and decodes ``manifest`` and ``stream``.
    """

    exchange = models.OneToOneField(
        Exchange, primary_key=True, on_delete=models.CASCADE, related_name="transcript"
    )
    created = models.DateTimeField(db_index=True)
    # Digest of all messages of the request, by which the next request is linked to it.
    prefix = models.BinaryField(max_length=16, db_index=True)
    manifest = models.BinaryField()
    stream = models.BinaryField(null=True)  # raw bytes from the upstream, with times of arrival

    def __str__(self) -> str:
        return f"transcript of {self.exchange_id}"


class LinkKind(models.TextChoices):
    """What a link of the hash chain records."""

    CLOSED = "closed"
    SETTLED = "settled"  # closed because its process is gone
    REPRICED = "repriced"
    ENCRYPTED = "encrypted"
    ERASED = "erased"
    AUDIT = "audit"  # an entry of the audit log
    PURGED = "purged"  # transcripts were deleted past their retention


class HashChainLink(models.Model):
    """A link of the hash chain: the digest of a ledger row when it was closed or amended.

    Other kinds of links cover an entry of the audit log, or record that transcripts were deleted.
    Sequence numbers have no gaps. The newest link of a row covers its current values. A copy of a
    digest outside of the database proves that no link up to this one was changed.
    """

    sequence = models.BigIntegerField(primary_key=True)
    day = models.DateField(db_index=True)  # UTC; when the link was created
    exchange_id = models.CharField(max_length=30, db_index=True)
    row_digest = models.BinaryField(max_length=32)
    body_digest = models.BinaryField(max_length=32, null=True)  # null: no transcript was stored
    kind = models.CharField(max_length=16, blank=True)  # a LinkKind; empty: written by 1.0
    note = models.CharField(max_length=200, blank=True)  # of a deletion: what was deleted, as JSON
    # Digest of these fields and the previous link's digest.
    digest = models.BinaryField(max_length=32)
    # Signature of this digest and the links since the previous signature, by a key that is not in
    # the database; null: a later link of the same transaction has it.
    signature = models.BinaryField(max_length=64, null=True)

    class Meta:
        ordering = ["sequence"]

    def __str__(self) -> str:
        return f"link {self.sequence} of {self.exchange_id}"


class LedgerHead(models.Model):
    """A single row with the end of the hash chain. Code that writes ledger rows locks it first."""

    sequence = models.BigIntegerField(default=0)
    digest = models.BinaryField(max_length=32, default=bytes(32))

    def __str__(self) -> str:
        return f"head at {self.sequence}"


class DrainWatermark(models.Model):
    """The progress of one journal: all its records before ``as_of`` are in the database."""

    journal = models.CharField(max_length=200, primary_key=True)  # host and path
    as_of = models.DateTimeField()
    backlog = models.PositiveBigIntegerField(default=0)
    seen = models.DateTimeField()  # time of the last update of this row

    class Meta:
        ordering = ["journal"]

    def __str__(self) -> str:
        return f"{self.journal} as of {self.as_of}"


class CopiedTable(models.Model):
    """How far ``copyledger`` has copied one table into this database.

    Rows exist only while this database is an unfinished copy, which no gateway may use.
    """

    table = models.CharField(max_length=63, primary_key=True)
    # The primary key of the last copied row, as texts; null: no row was copied.
    position = models.JSONField(null=True)
    rows = models.PositiveBigIntegerField(default=0)
    # What the copied ledger contained when the copy began.
    source = models.CharField(max_length=200)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.table}"
