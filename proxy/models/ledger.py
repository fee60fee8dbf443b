"""The ledger: one row for each accepted request, and the parts its transcript is made of."""

from django.db import models


class State(models.TextChoices):
    OPEN = "open"
    CLOSED = "closed"


class Outcome(models.TextChoices):
    """What became of a request; exactly one for each row that is not open."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    REFUSED = "refused"
    GATEWAY_ERROR = "gateway_error"
    INTERRUPTED = "interrupted"  # the process died
    DRAINED = "drained"  # cut off by a shutdown


class TokenSource(models.TextChoices):
    REPORTED = "reported"
    ESTIMATED = "estimated"
    MISSING = "missing"


def tokens() -> "models.BigIntegerField[int | None, int | None]":
    return models.BigIntegerField(null=True)  # null: nobody said


def source() -> "models.CharField[str, str]":
    return models.CharField(max_length=9, choices=TokenSource.choices, default=TokenSource.MISSING)


class Exchange(models.Model):
    """One client request and what became of it. The open record is durable before the dial.

    Names are kept as text beside nothing else: a deleted key or upstream leaves its rows readable.
    """

    id = models.CharField(max_length=30, primary_key=True)  # "req_" + ULID: sorts by time
    state = models.CharField(max_length=6, choices=State.choices, default=State.OPEN)
    outcome = models.CharField(max_length=16, choices=Outcome.choices, blank=True)
    status = models.PositiveSmallIntegerField(null=True)  # HTTP, as the client saw it
    stop_reason = models.CharField(max_length=40, blank=True)
    error_type = models.CharField(max_length=40, blank=True)
    error_message = models.TextField(blank=True)
    error_source = models.CharField(max_length=8, blank=True)  # client | gateway | upstream
    detail = models.CharField(max_length=200, blank=True)  # the cause in one word: bad_event, …

    created = models.DateTimeField()  # when the request was accepted
    finished = models.DateTimeField(null=True)  # null: open
    queue_ms = models.FloatField(null=True)
    ttft_ms = models.FloatField(null=True)  # acceptance to the first byte of content
    total_ms = models.FloatField(null=True)
    upstream_ms = models.FloatField(null=True)
    overhead_ms = models.FloatField(null=True)  # what the gateway itself added before the dial

    team = models.CharField(max_length=64)
    key_id = models.BigIntegerField(null=True)  # ApiKey.pk; no foreign key, see above
    key_name = models.CharField(max_length=64)
    user = models.CharField(max_length=150, blank=True)
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
    attempts = models.JSONField(default=list)  # [{upstream, model, status, error, ms}]
    notes = models.JSONField(default=list)  # [{path, fate, reason}]
    unknown_events = models.JSONField(default=dict)  # {type: count}

    input_tokens = tokens()  # neither read from nor written to a cache
    input_source = source()
    output_tokens = tokens()  # reasoning included
    output_source = source()
    cache_read_tokens = tokens()
    cache_read_source = source()
    cache_write_5m_tokens = tokens()
    cache_write_1h_tokens = tokens()
    cache_write_source = source()
    reasoning_tokens = tokens()
    reasoning_source = source()
    web_searches = models.PositiveIntegerField(null=True)
    service_tier = models.CharField(max_length=32, blank=True)
    cost_nanousd = models.BigIntegerField(null=True)  # null: no price known; 0: free
    price = models.JSONField(null=True)  # the price it used, as it was: {"id", "since", "input", …}

    message_count = models.PositiveIntegerField(default=0)
    tool_calls = models.PositiveIntegerField(default=0)
    tool_names = models.JSONField(default=list)
    has_images = models.BooleanField(default=False)
    has_thinking = models.BooleanField(default=False)
    preview = models.CharField(max_length=200, blank=True)  # first words of the new user text
    request_bytes = models.PositiveBigIntegerField(default=0)
    response_bytes = models.PositiveBigIntegerField(default=0)
    delivered = models.BooleanField(default=True)  # false: the answer was whole, the client gone
    worker = models.CharField(max_length=64, blank=True)  # boot id of the process that owns it
    previous_id = models.CharField(max_length=30, blank=True)  # the turn that this one goes on from
    new_from = models.PositiveIntegerField(default=0)  # index of the first message not sent before

    class Meta:
        verbose_name = "request"
        ordering = ["-id"]
        indexes = [
            # By time, and wide: whoever looks for the rare row among a million (a status, a cost)
            # walks this index, and touches only the rows that fit.
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


class Part(models.Model):
    """A piece of some transcript, kept once however many requests resend it.

    ``data`` is zstd of JSON, key order kept. Manifests name parts by ``id``: a few bytes each.
    """

    id = models.BigAutoField(primary_key=True)
    digest = models.BinaryField(max_length=32, unique=True)  # SHA-256 of the plain bytes
    size = models.PositiveBigIntegerField()  # bytes before compression
    data = models.BinaryField()
    used = models.DateTimeField(db_index=True)  # last named, to the hour; pruning goes by it

    def __str__(self) -> str:
        return f"part {self.pk} ({self.size} bytes)"


class Transcript(models.Model):
    """What was said in one exchange: a manifest that names parts. Pruned by retention.

    ``manifest`` and ``stream`` are written and read by ``proxy.record.transcripts`` only.
    """

    exchange = models.OneToOneField(
        Exchange, primary_key=True, on_delete=models.CASCADE, related_name="transcript"
    )
    created = models.DateTimeField(db_index=True)
    prefix = models.BinaryField(max_length=16, db_index=True)  # chained over the messages
    manifest = models.BinaryField()
    stream = models.BinaryField(null=True)  # the upstream's raw reads with their times

    def __str__(self) -> str:
        return f"transcript of {self.exchange_id}"


class Seal(models.Model):
    """One link of the hash chain: a row as it was when it was closed or amended.

    Sequence numbers have no gaps. The newest seal of an exchange speaks for its row. A day's last
    ``digest`` is the day's head: written down elsewhere, it vouches for all before it.
    """

    sequence = models.BigIntegerField(primary_key=True)
    day = models.DateField(db_index=True)  # UTC, of the sealing
    exchange_id = models.CharField(max_length=30, db_index=True)
    row_digest = models.BinaryField(max_length=32)
    body_digest = models.BinaryField(max_length=32, null=True)  # null: no transcript is kept
    digest = models.BinaryField(max_length=32)  # over the digest before it and the fields above

    class Meta:
        ordering = ["sequence"]

    def __str__(self) -> str:
        return f"seal {self.sequence} of {self.exchange_id}"


class LedgerHead(models.Model):
    """A single row: the end of the chain. Who writes to the ledger holds its lock."""

    sequence = models.BigIntegerField(default=0)
    digest = models.BinaryField(max_length=32, default=bytes(32))

    def __str__(self) -> str:
        return f"head at {self.sequence}"


class DrainMark(models.Model):
    """How far one spool has been moved into the database: all before ``as_of`` is here."""

    spool = models.CharField(max_length=200, primary_key=True)  # host and path
    as_of = models.DateTimeField()
    backlog = models.PositiveBigIntegerField(default=0)
    seen = models.DateTimeField()  # when the drainer last spoke

    class Meta:
        ordering = ["spool"]

    def __str__(self) -> str:
        return f"{self.spool} as of {self.as_of}"
