"""Create Redis clients from ``REDIS_URL``: one server, servers behind Sentinel, or Redis Cluster.

| URL | server |
|---|---|
| ``redis://``, ``rediss://`` (TLS), ``unix://`` | one server; all options of redis-py |
| ``redis+sentinel://HOST:PORT,HOST:PORT/DATABASE?service=NAME`` | the master that Sentinels name |
| ``redis+cluster://HOST:PORT`` | Redis Cluster; other nodes are found through this one |

``rediss+sentinel://`` and ``rediss+cluster://`` use TLS. redis-py parses every URL, so user,
password and the options in the query (such as ``ssl_ca_certs``) are those of redis-py.
"""

from typing import Any, Final, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from proxy.conf import conf

HEALTH_CHECK_S: Final = 30
SENTINEL_PORT: Final = 26_379
SENTINEL_OPTIONS: Final = ("host", "port", "db", "service", "connection_class")
"""Parts of a Sentinel's URL that are no options of the connections to the master."""


def client_of(url: str, timeout_s: float | None = None) -> "redis.Redis":
    """Return a Redis client, which connects when it is first used.

    ``timeout_s``: limit of each call; None: ``conf.redis_timeout_s``. Raises ValueError if the URL
    of a Sentinel does not name the service.
    """
    timeout_s = conf.redis_timeout_s if timeout_s is None else timeout_s
    options = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "decode_responses": True,
        "health_check_interval": HEALTH_CHECK_S,
        "retry": Retry(NoBackoff(), 0),  # no retries: the caller uses its local store instead
    }
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    plain_url = scheme + url[url.index("://") :]
    if kind == "sentinel":
        return _sentinel_master(plain_url, options)
    if kind == "cluster":
        return _Cluster(plain_url, options)  # type: ignore[return-value]
    return redis.Redis.from_url(plain_url, **options)


def _sentinel_master(url: str, options: dict[str, Any]) -> "redis.Redis":
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    parsed: list[dict[str, Any]] = [
        parse_url(parts._replace(netloc=f"{user}{at}{host}").geturl()) for host in hosts.split(",")
    ]
    service = parsed[0].get("service")
    if not service:
        raise ValueError("REDIS_URL names Sentinels, but no service: add ?service=NAME")
    given = {name: value for name, value in parsed[0].items() if name not in SENTINEL_OPTIONS}
    if parsed[0].get("connection_class") is SSLConnection:
        given["ssl"] = True
    login = ("username", "password")  # of the master; Sentinels usually have no users
    sentinel = Sentinel(
        [(each.get("host", "localhost"), each.get("port", SENTINEL_PORT)) for each in parsed],
        sentinel_kwargs={**options, **{name: given[name] for name in given if name not in login}},
        **options,
        **given,
    )
    master = sentinel.master_for(service, db=parsed[0].get("db", 0))
    return cast("redis.Redis", master)


class _Cluster:
    """A client of Redis Cluster. redis-py's own client connects in its constructor."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._url = url
        # One retry: after a failover, the first call learns the new nodes.
        self._options = {**options, "retry": Retry(NoBackoff(), 1)}
        self._connected: redis.RedisCluster | None = None

    def __getattr__(self, name: str) -> Any:
        if self._connected is None:
            self._connected = redis.RedisCluster.from_url(self._url, **self._options)
        return getattr(self._connected, name)

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
