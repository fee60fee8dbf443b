"""The app's settings as one frozen object, read once; tests may build their own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """Every figure that the app is tuned by. Times are seconds, sizes are bytes."""

    data_dir: Path
    redis_url: str = ""
    redis_timeout_s: float = 0.1
    """A stalled Redis may not stall the answers."""
    workers: int = 1
    """Processes that serve on this machine; more than one share their limits."""
    ping_interval_s: float = 15.0
    """A stream that says nothing for so long gets a ``ping``."""
    hold_s: float = 10.0
    """How long the 200 is held back for upstream's first event, so that it may become an error."""
    drain_s: float = 60.0
    keep_alive_s: float = 75.0
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    max_body_bytes: int = 32 * 2**20
    max_bodies_bytes: int = 2**30
    """Of memory, for the bodies of all requests in one worker until they are answered."""
    max_streams: int = 2000
    """Requests at once in one worker."""
    max_connections: int = 16_384
    """Of clients, in one worker; the limit of open files may allow fewer."""
    max_connections_per_address: int = 4_096
    shed_lag_s: float = 0.25
    """A worker whose event loop stays so late refuses new requests."""
    purge_hour: int | None = 3
    """From which hour (UTC) on a day's purge may begin; None: never by itself."""
    end_revoked: bool = False
    """Whether running requests end when their key is revoked."""
    refuse_unpriced: bool = True
    """Whether a hard budget refuses a model without a price."""
    trusted_proxies: tuple[str, ...] = ()

    @property
    def last_configuration(self) -> Path:
        """What the gateway last decided by: it has served from this directory."""
        return self.data_dir / "configuration.json"

    @classmethod
    def from_settings(cls) -> Self:
        return cls(
            data_dir=settings.DATA_DIR,
            redis_url=settings.REDIS_URL,
            redis_timeout_s=settings.REDIS_TIMEOUT_S,
            workers=settings.WORKERS,
            ping_interval_s=settings.PING_INTERVAL_S,
            hold_s=settings.HOLD_S,
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
            end_revoked=settings.REVOKED_STREAMS == "end",
            refuse_unpriced=settings.UNPRICED == "refuse",
            trusted_proxies=tuple(settings.TRUSTED_PROXIES),
        )


conf = Conf.from_settings()
