"""Usage added up by the drainer, in the transaction that closes the rows it adds.

Tables with the same counts. A report reads the smallest one that knows its dimensions and its
bucket: quarter hours add up to the hours and days of every IANA zone (offsets are multiples of 15
minutes), UTC days serve long ranges. ``Usage`` tables know every dimension, ``Who`` and ``What``
one half of them each, which makes them many times smaller where many keys use many models.
"""

from django.db import models


def count() -> "models.BigIntegerField[int, int]":
    return models.BigIntegerField(default=0)


def name(length: int = 64) -> "models.CharField[str, str]":
    return models.CharField(max_length=length, blank=True, default="")


class UsageCounts(models.Model):
    """What is added up. Tokens are apart by who said them; ``_missing`` counts requests."""

    id = models.BinaryField(max_length=16, primary_key=True)  # digest of start and dimensions
    start = models.DateTimeField()  # UTC; a request belongs to the bucket it was accepted in

    requests = count()
    errors = count()  # failed, and not because the client left
    client_gone = count()
    input_reported = count()
    input_estimated = count()
    input_missing = count()
    output_reported = count()
    output_estimated = count()
    output_missing = count()
    cache_read_reported = count()
    cache_read_estimated = count()
    cache_read_missing = count()
    cache_write_5m_reported = count()
    cache_write_5m_estimated = count()
    cache_write_1h_reported = count()
    cache_write_1h_estimated = count()
    cache_write_missing = count()
    reasoning_reported = count()
    reasoning_estimated = count()
    reasoning_missing = count()
    cost_nanousd = count()  # of the priced ones; a floor where ``unpriced`` is not 0
    cost_estimated_nanousd = count()  # the part of it that rests on estimated tokens
    cost_input_nanousd = count()  # these five add up to cost_nanousd
    cost_output_nanousd = count()
    cost_cache_read_nanousd = count()
    cost_cache_write_5m_nanousd = count()
    cost_cache_write_1h_nanousd = count()
    unpriced = count()  # requests that used tokens and have no price
    web_searches = count()
    tool_calls = count()

    class Meta:
        abstract = True


class WhoDimensions(models.Model):
    """By whom. Blank: unknown or none."""

    team = name()
    key_id = models.BigIntegerField(null=True)
    key_name = name()
    user = name(150)
    client_name = name()

    class Meta:
        abstract = True


class WhatDimensions(models.Model):
    """What for, and how it ended. Blank: unknown or none."""

    endpoint = name(16)
    model_requested = name(200)
    model_upstream = name(200)
    upstream = name()
    service_tier = name(32)
    context_window = name(16)  # "0-200k" or "200k-1M", by the size of the prompt
    outcome = name(16)
    status = models.PositiveSmallIntegerField(null=True)
    stop_reason = name(40)
    error_type = name(40)

    class Meta:
        abstract = True


class WhoCounts(UsageCounts, WhoDimensions):
    """By whom, at least: teams and keys ask for their own."""

    class Meta:
        abstract = True
        indexes = [
            models.Index(fields=["start"]),
            models.Index(fields=["team", "start"]),
            models.Index(fields=["key_id", "start"]),
        ]


class WhatCounts(UsageCounts, WhatDimensions):
    """By what was asked for."""

    class Meta:
        abstract = True
        indexes = [models.Index(fields=["start"])]


class Sketched(models.Model):
    """{"ttft_ms": {"37": 2, …}, …}: counts by bucket of proxy.record.latency."""

    latency = models.JSONField(default=dict)

    class Meta:
        abstract = True


class QuarterUsage(WhoCounts, WhatDimensions, Sketched):
    """A quarter of an hour."""

    def __str__(self) -> str:
        return f"{self.requests} requests from {self.start}"


class DayUsage(WhoCounts, WhatDimensions, Sketched):
    """A UTC day."""

    def __str__(self) -> str:
        return f"{self.requests} requests on {self.start:%Y-%m-%d}"


class DaySummary(UsageCounts):
    """A UTC day by team, model and upstream only: small enough for a year at a glance."""

    team = name()
    model_requested = name(200)
    model_upstream = name(200)
    upstream = name()

    class Meta:
        indexes = [models.Index(fields=["start"])]

    def __str__(self) -> str:
        return f"{self.requests} requests on {self.start:%Y-%m-%d}"


class QuarterWho(WhoCounts):
    """A quarter of an hour by who asked."""

    def __str__(self) -> str:
        return f"{self.requests} requests of {self.team} from {self.start}"


class DayWho(WhoCounts, Sketched):
    """A UTC day by who asked."""

    def __str__(self) -> str:
        return f"{self.requests} requests of {self.team} on {self.start:%Y-%m-%d}"


class QuarterWhat(WhatCounts, Sketched):
    """A quarter of an hour by what was asked for."""

    def __str__(self) -> str:
        return f"{self.requests} requests for {self.model_requested} from {self.start}"


class DayWhat(WhatCounts, Sketched):
    """A UTC day by what was asked for."""

    def __str__(self) -> str:
        return f"{self.requests} requests for {self.model_requested} on {self.start:%Y-%m-%d}"


class DaySession(WhoCounts):
    """A UTC day of one session; blank: of all requests that belong to none."""

    session_id = name(200)

    def __str__(self) -> str:
        return f"{self.requests} requests of {self.session_id} on {self.start:%Y-%m-%d}"
