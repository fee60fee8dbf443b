"""Rotated secrets of upstreams while the database is unreachable."""

from proxy.conf import conf
from proxy.gateway.snapshot.config_snapshot import ConfigStore
from proxy.models import Upstream
from tests.proxy.gateway.conftest import add_route


def secret_in(store: ConfigStore) -> bytes:
    return store.snapshot.exact[None, "claude-x"].targets[0].server.fixed.secret


def test_a_rotated_secret_is_used_while_the_database_is_unreachable(tmp_path, missing_ledger):
    """The rows are from the cache; the secret that they refer to is read again."""
    secret = tmp_path / "secret"
    secret.write_text("one")
    upstream = {"dialect": "chat", "base_url": "http://vllm:8000/v1"}
    vllm = Upstream.objects.create(name="vllm", secret={"file": str(secret)}, **upstream)
    Upstream.objects.create(name="away", secret={"env": "NO_SUCH_VARIABLE"}, **upstream)
    add_route("claude-x", vllm)
    store = ConfigStore()
    store.poll()
    assert secret_in(store) == b"one"
    unchanged = store.snapshot
    store.poll()
    assert store.snapshot is unchanged

    with missing_ledger():
        secret.write_text("two")
        store.poll()
        assert secret_in(store) == b"two"
        conf.last_configuration.unlink()
        secret.write_text("three")
        store.poll()  # without the file there are no rows
        assert secret_in(store) == b"two"
    store.poll()
    assert secret_in(store) == b"three"
    secret.unlink()
    store.poll()
    assert secret_in(store) == b"three"
    assert store.snapshot.secret_files == {"vllm": str(secret)}
    assert store.snapshot.broken.keys() == {"away"}
