"""Limit the client connections of a worker: in total, and for each client address.

A request takes two file descriptors: the client's connection and the upstream connection. The
rest of the limit of open files is for the ledger, the database, the admin and the logs.
"""

import ipaddress
import logging
import resource
from collections import Counter
from functools import lru_cache
from typing import Final

from proxy.conf import Conf, conf

log = logging.getLogger("proxy.connections")

RESERVED_FILES: Final = 192
"""The number of file descriptors for all other purposes: an idle worker uses 40, and each thread
with a database connection 3."""
MIN_CONNECTIONS: Final = 16
"""The number of connections that is accepted even if the limit of open files is lower."""
MAX_SHARE: Final = 0.75
"""Largest share of all connections for one address, so that others can still connect."""
IPV6_PREFIX: Final = 64
"""Prefix length that identifies an IPv6 client: a site has at least a /64."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def warn_of_low_limit(files: int, conf: Conf) -> None:
    """Log a warning if the limit of open files allows fewer connections than the settings."""
    most = connection_limit(files, conf.max_connections)
    if most < min(conf.max_connections, conf.max_streams):
        log.warning(
            "the limit of %d open files allows %d connections of clients in a worker; raise its "
            "hard limit (ulimit -Hn, LimitNOFILE=)", files, most,
        )  # fmt: skip


def connection_limit(files: int, setting: int) -> int:
    """Return how many connections ``files`` descriptors allow, two for each, up to ``setting``."""
    return min(setting, max(MIN_CONNECTIONS, (files - RESERVED_FILES) // 2))


@lru_cache(maxsize=4_096)
def counted_client(address: str, trusted: tuple[str, ...]) -> str | None:
    """Return the name that an address is counted under; None for a trusted proxy.

    A trusted proxy connects for many clients, so no limit for one client applies to it.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    if any(ip in ipaddress.ip_network(name, strict=False) for name in trusted):
        return None
    if ip.version == 6:
        return str(ipaddress.ip_network((ip, IPV6_PREFIX), strict=False))
    return str(ip)


class ConnectionLimits:
    """Count open connections: ``acquire`` a slot for each, and ``release`` it at its end."""

    def __init__(self, total: int, each: int, trusted: tuple[str, ...] = ()) -> None:
        self.total = total
        self.each = min(each, max(1, int(total * MAX_SHARE)))
        self._trusted = trusted
        self.open_connections = 0
        self.by_client: Counter[str] = Counter()

    def acquire(self, address: str) -> str | None:
        """Count a connection, or return the limit that rejects it: ``total`` or ``address``."""
        if self.open_connections >= self.total:
            return "total"
        client = counted_client(address, self._trusted)
        if client is not None:
            if self.by_client[client] >= self.each:
                return "address"
            self.by_client[client] += 1
        self.open_connections += 1
        return None

    def release(self, address: str) -> None:
        self.open_connections -= 1
        client = counted_client(address, self._trusted)
        if client is not None:
            self.by_client[client] -= 1
            if not self.by_client[client]:
                del self.by_client[client]


@lru_cache(maxsize=1)
def connection_limits() -> ConnectionLimits:
    """Return the limits of this process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = connection_limit(files, conf.max_connections)
    return ConnectionLimits(total, conf.max_connections_per_address, conf.trusted_proxies)
