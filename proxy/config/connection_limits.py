"""How many connections of clients a worker holds: for each address, and by its file limit.

Each connection is a file descriptor, and so is the connection to the upstream behind it. What is
left of the limit belongs to the ledger, the database, the admin and the logs.
"""

import ipaddress
import logging
import resource
from collections import Counter
from functools import lru_cache
from typing import Final

from proxy.conf import Conf, conf

log = logging.getLogger("proxy.connections")

RESERVED: Final = 192
"""File descriptors that no client's connection takes: 40 at rest, 3 for each thread's database."""
FEWEST: Final = 16
"""Connections however low the limit is."""
SHARE: Final = 0.75
"""Of all connections, at most, that one address holds: others still get in."""
IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that belong to one client: a site gets a /64, at least."""


def raise_file_limit() -> int:
    """Raise the soft limit of file descriptors to the hard one; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def warn_of_low_limit(files: int, conf: Conf) -> None:
    """Log it where the file limit, not a setting, bounds the connections of clients."""
    most = most_connections(files, conf.max_connections)
    if most < min(conf.max_connections, conf.max_streams):
        log.warning(
            "the limit of %d open files allows %d connections of clients in a worker; raise its "
            "hard limit (ulimit -Hn, LimitNOFILE=)", files, most,
        )  # fmt: skip


def most_connections(files: int, wanted: int) -> int:
    """Connections that ``files`` descriptors allow, two for each, and no more than ``wanted``."""
    return min(wanted, max(FEWEST, (files - RESERVED) // 2))


@lru_cache(maxsize=4_096)
def client_of(address: str, trusted: tuple[str, ...]) -> str | None:
    """The name that an address is counted under. None: a trusted proxy, which speaks for many."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    if any(ip in ipaddress.ip_network(name, strict=False) for name in trusted):
        return None
    if ip.version == 6:
        return str(ipaddress.ip_network((ip, IPV6_CLIENT), strict=False))
    return str(ip)


class ConnectionLimits:
    """Counts what is open. ``take`` for each connection, ``give_back`` for each that was taken."""

    def __init__(self, total: int, each: int, trusted: tuple[str, ...] = ()) -> None:
        self.total = total
        self.each = min(each, max(1, int(total * SHARE)))
        self._trusted = trusted
        self._open = 0
        self._by_client: Counter[str] = Counter()

    def take(self, address: str) -> str | None:
        """Count a connection. Returns the limit that refuses it: ``total`` or ``address``."""
        if self._open >= self.total:
            return "total"
        client = client_of(address, self._trusted)
        if client is not None:
            if self._by_client[client] >= self.each:
                return "address"
            self._by_client[client] += 1
        self._open += 1
        return None

    def give_back(self, address: str) -> None:
        self._open -= 1
        client = client_of(address, self._trusted)
        if client is not None:
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]


@lru_cache(maxsize=1)
def connection_limits() -> ConnectionLimits:
    """Of this process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = most_connections(files, conf.max_connections)
    return ConnectionLimits(total, conf.max_connections_per_address, conf.trusted_proxies)
