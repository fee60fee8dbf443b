"""The settings of the app ``proxy`` as one immutable object, created once from Django's settings.

Tests may create other objects.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """The settings of the app ``proxy``. Times are in seconds, sizes in bytes."""

    data_dir: Path
    redis_url: str = ""
    redis_timeout_s: float = 0.1
    """The timeout of a Redis call. It is short, so a slow Redis does not delay responses."""
    workers: int = 1
    """Worker processes on this machine. Several workers share the counts of rate limits and
    budgets."""
    ping_interval_s: float = 15.0
    """A client whose stream had no event for this time gets a ``ping`` event."""
    first_event_wait_s: float = 10.0
    """How long the gateway delays status 200 to wait for the upstream's first event. If that event
    is an error, the client still gets an error status."""
    drain_s: float = 60.0
    keep_alive_s: float = 75.0
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    max_body_bytes: int = 32 * 2**20
    max_bodies_bytes: int = 2**30
    """The memory limit for the request bodies of all running requests in one worker."""
    max_streams: int = 2000
    """The maximum number of concurrent requests in one worker."""
    max_connections: int = 16_384
    """The maximum number of client connections in one worker. The process's limit of open files may
    allow fewer."""
    max_connections_per_address: int = 4_096
    shed_lag_s: float = 0.25
    """A worker whose event loop is repeatedly late by this time rejects new requests."""
    purge_hour: int | None = 3
    """The hour (UTC) from which the daily purge of expired ledger data may begin; None: no daily
    purge."""
    archive_after_months: int | None = None
    """Full months that stay in the database; older ones are archived. None: no schedule."""
    archive_to: str = ""
    """The folder or bucket of archived months."""
    audit_days: int = 730
    """Days after which a purge deletes an entry of the audit log."""
    search: bool = True
    """Whether the texts of transcripts are indexed and can be searched. With body keys they are
    not: the index would contain the words that the keys encrypt."""
    reading_needs_reason: bool = False
    """Whether everyone who reads another person's transcript must give a reason."""
    end_revoked: bool = False
    """Whether the gateway stops the running requests of a key that is revoked."""
    refuse_unpriced: bool = True
    """Whether requests for a model without a price are rejected if a hard budget covers them."""
    trusted_proxies: tuple[str, ...] = ()
    web_search_url: str = ""
    """The search endpoint for translated routes; "": the gateway makes no searches."""
    web_search_format: str = "searxng"
    web_search_timeout_s: float = 10.0
    web_search_max_results: int = 5

    @property
    def last_configuration(self) -> Path:
        """The file with the configuration rows last read.

        It exists if a gateway has served from this data directory.
        """
        return self.data_dir / "configuration.json"

    @classmethod
    def from_settings(cls) -> Self:
        return cls(
            data_dir=settings.DATA_DIR,
            redis_url=settings.REDIS_URL,
            redis_timeout_s=settings.REDIS_TIMEOUT_S,
            workers=settings.WORKERS,
            ping_interval_s=settings.PING_INTERVAL_S,
            first_event_wait_s=settings.FIRST_EVENT_WAIT_S,
            drain_s=settings.DRAIN_S,
            keep_alive_s=settings.KEEP_ALIVE_S,
            head_timeout_s=settings.HEAD_TIMEOUT_S,
            body_timeout_s=settings.BODY_TIMEOUT_S,
            write_timeout_s=settings.WRITE_TIMEOUT_S,
            max_body_bytes=settings.MAX_BODY_BYTES,
            max_bodies_bytes=settings.MAX_BODIES_BYTES,
            max_streams=settings.MAX_STREAMS,
            max_connections=settings.MAX_CONNECTIONS,
            max_connections_per_address=settings.MAX_CONNECTIONS_PER_ADDRESS,
            shed_lag_s=settings.SHED_LAG_S,
            purge_hour=settings.PURGE_HOUR,
            archive_after_months=settings.ARCHIVE_AFTER_MONTHS,
            archive_to=settings.ARCHIVE_TO or str(settings.DATA_DIR / "archive"),
            audit_days=settings.AUDIT_DAYS,
            search=settings.SEARCH and not settings.BODY_KEYS,
            reading_needs_reason=settings.READING_NEEDS_REASON,
            end_revoked=settings.REVOKED_STREAMS == "end",
            refuse_unpriced=settings.UNPRICED == "refuse",
            trusted_proxies=tuple(settings.TRUSTED_PROXIES),
            web_search_url=settings.WEB_SEARCH_URL,
            web_search_format=settings.WEB_SEARCH_FORMAT,
            web_search_timeout_s=settings.WEB_SEARCH_TIMEOUT_S,
            web_search_max_results=settings.WEB_SEARCH_MAX_RESULTS,
        )


conf = Conf.from_settings()
