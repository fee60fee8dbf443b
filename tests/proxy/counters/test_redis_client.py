"""REDIS_URL names one server, servers behind Sentinel, or a cluster, with or without TLS."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from proxy.counters.redis_client import client_of
from proxy.counters.redis_store import RedisStore
from proxy.counters.store import Standing, StoreUnavailable, Take
from proxy.gateway.admission.rate_limits import SharedLimiter, limits_of
from proxy.gateway.snapshot.config_snapshot import Limits
from tests.fakes.load.kill_process import reserved_port
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S, RedisServer, running_redis
from tests.proxy.gateway.admission.test_shared_rate_limits import caller, is_admitted, wait_for_pool

__all__ = ["running_redis"]  # a fixture: it skips the tests where Redis is not installed


def use_all_stores(url: str) -> None:
    """Call all scripts and commands of the gateway through the client of ``url``."""
    store = RedisStore(url, REDIS_TIMEOUT_S)
    counters = [Take("1:team", 60, 100), Take("2:key", 60)]
    names = [each.counter for each in counters]
    for name in names:
        store.publish(name, 0)
    assert store.take("r1", "me", counters).granted
    assert not store.take("r2", "me", counters).granted
    store.renew("me", dict.fromkeys(names))
    store.settle("r1", names, 20)
    assert [*store.reserved_ids("1:team")] == [["r1"]]
    store.apply_posted("1:team", {"r1": 20})
    store.mark_posted("2:key", ["r1"])
    assert [store.standing(name) for name in names] == [Standing(20, 0, 0)] * 2
    store.take("r3", "me", counters)
    store.release("r3", names)
    store.forget(names)

    process = SharedLimiter(store, "me")
    sender = caller(Limits(concurrency=1), Limits(rpm=9))
    slot = process.acquire(sender, 1)
    process.renew()
    assert not is_admitted(process, sender)
    slot.release()
    wait_for_pool()
    assert store.peek([each.take for each in limits_of(sender, 1, "")])[0] == Standing()

    store.update(["live one", "live two"], lambda _: ["1", "2"])
    assert store.read(["live two", "live one"]) == ["2", "1"]
    store.close()


def test_one_server(running_redis: RedisServer):
    running_redis.client.flushall()
    use_all_stores(running_redis.url)


@pytest.fixture
def start(tmp_path: Path, running_redis: RedisServer) -> Iterator[Callable[..., RedisServer]]:
    del running_redis
    started: list[RedisServer] = []

    def start_server(*arguments: str, text: str = "") -> RedisServer:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        file = folder / "redis.conf"  # a Sentinel writes to its file
        file.write_text(text)
        server = RedisServer(folder, *arguments, file=file)
        started.append(server)
        server.start()
        return server

    yield start_server
    for server in started:
        server.close()


@pytest.fixture
def cluster(start) -> Iterator[RedisServer]:
    """A cluster of one node, which rejects a script whose keys are in several slots."""
    with reserved_port() as bus:
        server = start("--cluster-enabled", "yes", "--cluster-port", str(bus))
        server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        wait_until_up(server)
        yield server


def wait_until_up(server: RedisServer) -> None:
    deadline = time.monotonic() + 60
    while server.client.cluster("INFO")["cluster_state"] != "ok":
        assert time.monotonic() < deadline, "the cluster is not ready"
        time.sleep(0.05)


def test_a_cluster_accepts_all_scripts(cluster: RedisServer):
    with pytest.raises(redis.ResponseError, match="same slot"):
        cluster.client.eval("return 1", 2, "a", "b")

    use_all_stores(f"redis+cluster://127.0.0.1:{cluster.port}")


def test_a_cluster_that_is_down_at_the_start_counts_as_unavailable(cluster: RedisServer):
    """redis-py connects in the constructor of its client; here the first call connects."""
    cluster.kill()
    store = RedisStore(f"redis+cluster://127.0.0.1:{cluster.port}", REDIS_TIMEOUT_S)

    with pytest.raises(StoreUnavailable):
        store.publish("1:team", 0)

    store.close()


def test_sentinels_name_the_master(start, tmp_path: Path):
    master = start()
    monitor = f"sentinel monitor mymaster 127.0.0.1 {master.port} 1"
    sentinels = [start("--sentinel", text=monitor) for _ in range(2)]
    hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)

    use_all_stores(f"redis+sentinel://{hosts}/3?service=mymaster")
    sentinels[0].kill()
    use_all_stores(f"redis+sentinel://{hosts}/4?service=mymaster")

    assert set(master.client.info("keyspace")) <= {"db3", "db4"}
    with pytest.raises(ValueError, match=r"add \?service=NAME"):
        client_of(f"redis+sentinel://{hosts}/0")


def test_a_server_with_tls(start, tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(  # noqa: S603 - our own arguments
        [shutil.which("openssl") or "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key),
         "-out", str(certificate), "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with reserved_port() as port:
        start(
            "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
            "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
        )  # fmt: skip

        use_all_stores(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
        with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
            client_of(f"rediss://127.0.0.1:{port}/0", REDIS_TIMEOUT_S).ping()
