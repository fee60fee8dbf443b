"""Rollups: tables of usage sums, updated in the transaction that closes ledger rows.

All tables have the same counts. A report reads the smallest table that has its dimensions and time
buckets. Quarter hours can be added up to hours and days of each IANA time zone, because offsets are
multiples of 15 minutes; UTC days are for long time ranges. ``UsageQuarterHour`` and ``UsageDay``
have all dimensions. The ``ByCaller`` and ``ByModel`` tables have some of the dimensions, so they
are much smaller if many keys use many models.
"""

from django.db import models


def counter_field() -> "models.BigIntegerField[int, int]":
    return models.BigIntegerField(default=0)


def name_field(length: int = 64) -> "models.CharField[str, str]":
    return models.CharField(max_length=length, blank=True, default="")


class UsageCounts(models.Model):
    """The sums of one time bucket and one combination of dimensions.

    Each token class has a sum for each source of its counts (reported or estimated); ``_missing``
    is the number of requests without a count.
    """

    id = models.BinaryField(max_length=16, primary_key=True)  # digest of start and dimensions
    start = models.DateTimeField()  # start of the bucket in which requests were accepted, UTC

    requests = counter_field()
    errors = counter_field()  # number of failed requests, without client disconnects
    client_gone = counter_field()
    input_reported = counter_field()
    input_estimated = counter_field()
    input_missing = counter_field()
    output_reported = counter_field()
    output_estimated = counter_field()
    output_missing = counter_field()
    cache_read_reported = counter_field()
    cache_read_estimated = counter_field()
    cache_read_missing = counter_field()
    cache_write_5m_reported = counter_field()
    cache_write_5m_estimated = counter_field()
    cache_write_1h_reported = counter_field()
    cache_write_1h_estimated = counter_field()
    cache_write_missing = counter_field()
    reasoning_reported = counter_field()
    reasoning_estimated = counter_field()
    reasoning_missing = counter_field()
    # Cost of the requests with a price; incomplete if ``unpriced`` is not 0.
    cost_nanousd = counter_field()
    cost_estimated_nanousd = counter_field()  # part of the cost from estimated token counts
    cost_input_nanousd = counter_field()  # the sum of this and the next four is cost_nanousd
    cost_output_nanousd = counter_field()
    cost_cache_read_nanousd = counter_field()
    cost_cache_write_5m_nanousd = counter_field()
    cost_cache_write_1h_nanousd = counter_field()
    unpriced = counter_field()  # number of requests that used tokens and have no price
    web_searches = counter_field()
    tool_calls = counter_field()

    class Meta:
        abstract = True


class CallerDimensions(models.Model):
    """The dimensions of the caller, by id, see ``ledger_names``. Blank: unknown or none."""

    team = name_field()
    key_id = models.BigIntegerField(null=True)
    key_name = name_field()  # only in sums of earlier versions, whose digests cover it
    user = name_field(150)
    client_name = name_field()

    class Meta:
        abstract = True


class ModelDimensions(models.Model):
    """The dimensions of the model and the result. A blank value means unknown or none."""

    endpoint = name_field(16)
    model_requested = name_field(200)
    model_upstream = name_field(200)
    upstream = name_field()
    service_tier = name_field(32)
    context_window = name_field(16)  # "0-200k" or "200k-1M", by the size of the prompt
    outcome = name_field(16)
    status = models.PositiveSmallIntegerField(null=True)
    stop_reason = name_field(40)
    error_type = name_field(40)

    class Meta:
        abstract = True


class CountsByCaller(UsageCounts, CallerDimensions):
    """Usage by caller, indexed for reports of one team or key."""

    class Meta:
        abstract = True
        indexes = [
            models.Index(fields=["start"]),
            models.Index(fields=["team", "start"]),
            models.Index(fields=["key_id", "start"]),
        ]


class CountsByModel(UsageCounts, ModelDimensions):
    """Usage by model and result."""

    class Meta:
        abstract = True
        indexes = [models.Index(fields=["start"])]


class HasLatencyHistogram(models.Model):
    """Latency histograms: {metric: {bucket: requests}}, such as {"ttft_ms": {"37": 2, …}, …}.

    See ``proxy.ledger.usage.latency_histogram``.
    """

    latency = models.JSONField(default=dict)

    class Meta:
        abstract = True


class UsageQuarterHour(CountsByCaller, ModelDimensions, HasLatencyHistogram):
    """Usage of a quarter hour by all dimensions."""

    def __str__(self) -> str:
        return f"{self.requests} requests from {self.start}"


class UsageDay(CountsByCaller, ModelDimensions, HasLatencyHistogram):
    """Usage of a UTC day by all dimensions."""

    def __str__(self) -> str:
        return f"{self.requests} requests on {self.start:%Y-%m-%d}"


class UsageSummaryDay(UsageCounts):
    """Usage of a UTC day by team, model and upstream only, for reports over a year."""

    team = name_field()
    model_requested = name_field(200)
    model_upstream = name_field(200)
    upstream = name_field()

    class Meta:
        indexes = [models.Index(fields=["start"])]

    def __str__(self) -> str:
        return f"{self.requests} requests on {self.start:%Y-%m-%d}"


class UsageByCallerQuarterHour(CountsByCaller):
    """Usage of a quarter hour by caller."""

    def __str__(self) -> str:
        return f"{self.requests} requests of {self.team} from {self.start}"


class UsageByCallerDay(CountsByCaller, HasLatencyHistogram):
    """Usage of a UTC day by caller. The ledger has requests of each user who is named here."""

    class Meta:
        indexes = [
            models.Index(fields=["start"]),
            models.Index(fields=["team", "start"]),
            models.Index(fields=["key_id", "start"]),
            models.Index(fields=["user"]),
        ]

    def __str__(self) -> str:
        return f"{self.requests} requests of {self.team} on {self.start:%Y-%m-%d}"


class UsageByModelQuarterHour(CountsByModel, HasLatencyHistogram):
    """Usage of a quarter hour by model and result."""

    def __str__(self) -> str:
        return f"{self.requests} requests for {self.model_requested} from {self.start}"


class UsageByModelDay(CountsByModel, HasLatencyHistogram):
    """Usage of a UTC day by model and result."""

    def __str__(self) -> str:
        return f"{self.requests} requests for {self.model_requested} on {self.start:%Y-%m-%d}"


class UsageBySessionDay(CountsByCaller):
    """Usage of a UTC day by session; all requests without a session have a blank session id."""

    session_id = name_field(200)

    def __str__(self) -> str:
        return f"{self.requests} requests of {self.session_id} on {self.start:%Y-%m-%d}"


class UsageByToolDay(CountsByCaller):
    """Usage of a UTC day by called tool; a request that calls two tools is in the sums of both.

    A blank ``tool`` stands for the requests that call none.
    """

    tool = name_field(200)

    def __str__(self) -> str:
        return f"{self.requests} requests with {self.tool} on {self.start:%Y-%m-%d}"


class StopReasonDay(models.Model):
    """The stop reasons of a UTC day by caller, client version, model and called tool.

    A blank ``tool`` stands for answers that call none. An answer that calls two tools has a row for
    each: ``requests`` counts it in the first only, ``requests_with_tool`` in both.
    """

    id = models.BinaryField(max_length=16, primary_key=True)  # digest of start and dimensions
    start = models.DateTimeField()  # start of the UTC day
    team = name_field()
    key_id = models.BigIntegerField(null=True)
    user = name_field(150)
    client_name = name_field()
    client_version = name_field(32)
    model_requested = name_field(200)
    tool = name_field(200)
    stop_reason = name_field(40)
    requests = counter_field()
    requests_with_tool = counter_field()

    class Meta:
        indexes = [
            models.Index(fields=["start"]),
            models.Index(fields=["team", "start"]),
            models.Index(fields=["key_id", "start"]),
        ]

    def __str__(self) -> str:
        return f"{self.requests} requests with {self.stop_reason} on {self.start:%Y-%m-%d}"
