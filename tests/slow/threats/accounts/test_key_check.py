"""The key check: each result for known, unknown and restricted keys."""

import threading
import time
from pathlib import Path

import pytest
from django.db import connection

from proxy.gateway.admission.auth import LONGEST_KEY, authenticate
from proxy.gateway.http.errors import HttpError
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.snapshot import config_cache
from proxy.gateway.snapshot.config_snapshot import (
    NO_LIMITS,
    Caller,
    ConfigStore,
    ModelAllowList,
    RouteEntry,
    Snapshot,
    TeamEntry,
)
from proxy.models import ApiKey, Team, Upstream
from proxy.permissions.key_validity import MESSAGES, End, Reason
from proxy.secrets import digest_of

NOW = time.time()
LONG = "k" * LONGEST_KEY
NO_KEY_TEXT = "no gateway key; send x-api-key or Authorization: Bearer"
DIFFERENT_KEYS_TEXT = "x-api-key and Authorization carry different keys; send one"


def caller(**fields) -> Caller:
    team = TeamEntry(name="t", store_full=True, models=ModelAllowList(), limits=NO_LIMITS)
    return Caller(**{
        "key_id": 1, "key_name": "k", "meter": "t/k", "team": team, "user": "",
        "scopes": frozenset({"messages"}), "models": ModelAllowList(), "limits": NO_LIMITS, "ip_allow": (),
        "strict": False, "events": frozenset(), **fields,
    })  # fmt: skip


def known_keys(fresh: bool = True, **fields) -> tuple[ConfigStore, Caller]:
    """Return a store with the keys ``good`` and ``LONG``, and the caller of both."""
    expected_caller = caller(**fields)
    store = ConfigStore()
    store.snapshot = Snapshot(keys={digest_of(key): expected_caller for key in ("good", LONG)})
    store.fresh = fresh
    return store, expected_caller


def head(key: bytes | None = b"good", bearer: bytes | None = None) -> RequestHeaders:
    headers = [(b"x-api-key", key), (b"authorization", bearer)]
    present = [(name, value) for name, value in headers if value is not None]
    return RequestHeaders({"path": "/v1/messages", "headers": present, "client": ("192.0.2.7", 1)})


@pytest.mark.parametrize(
    ("key", "bearer"),
    [
        (b"good", None),
        (b"  good ", None),
        (None, b"Bearer good"),
        (None, b" BEARER  good "),
        (b"good", b"Bearer good"),
        (b"good", b"Basic other"),
        (b"good", b"Bearer"),
        (b" ", b"Bearer good"),
        (LONG.encode(), None),
    ],
)
def test_known_key_is_accepted_in_each_header_form(key, bearer):
    expiry = End(Reason.EXPIRED, time.time() + 3_600)
    store, expected_caller = known_keys(ip_allow=("192.0.2.0/24",), ends=(expiry,))

    assert authenticate(head(key, bearer), store=store) is expected_caller


@pytest.mark.parametrize(
    ("key", "bearer", "status", "kind", "message"),
    [
        (None, None, 401, "authentication_error", NO_KEY_TEXT),
        (b" ", b"Basic good", 401, "authentication_error", NO_KEY_TEXT),
        (None, b"good", 401, "authentication_error", NO_KEY_TEXT),
        (b"other", None, 401, "authentication_error", "invalid gateway key"),
        (LONG.encode() + b"k", None, 401, "authentication_error", "invalid gateway key"),
        (b"g\xc3\xa9", None, 401, "authentication_error", "invalid gateway key"),
        (b"good", b"Bearer other", 400, "invalid_request_error", DIFFERENT_KEYS_TEXT),
    ],
)  # fmt: skip
def test_invalid_key_is_rejected_with_this_message(key, bearer, status, kind, message):
    store, _ = known_keys()

    with pytest.raises(HttpError) as rejected:
        authenticate(head(key, bearer), store=store)

    error = rejected.value
    assert (error.status, error.error_type, error.message) == (status, kind, message)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        *(
            ({"ends": (End(reason, NOW),)}, 401, message) for reason, message in MESSAGES.items()
        ),
        (
            {"ip_allow": ("10.0.0.0/8", "192.0.2.8/32")}, 403,
            "this gateway key may not be used from this address",
        ),
        ({"scopes": frozenset({"reports"})}, 403, "this gateway key lacks the scope 'messages'"),
    ],
)  # fmt: skip
def test_known_key_without_permission_is_rejected(fields, status, message):
    store, _ = known_keys(**fields)

    with pytest.raises(HttpError) as rejected:
        authenticate(head(), store=store)

    kind = "authentication_error" if status == 401 else "permission_error"
    error = rejected.value
    assert (error.status, error.error_type, error.message) == (status, kind, message)


def test_required_scope_is_checked():
    store, expected_caller = known_keys(scopes=frozenset({"reports"}))

    assert authenticate(head(), "reports", store) is expected_caller


def test_unknown_key_gets_503_while_the_database_is_unavailable():
    store, expected_caller = known_keys(fresh=False)

    assert authenticate(head(), store=store) is expected_caller
    with pytest.raises(HttpError) as rejected:
        authenticate(head(b"other"), store=store)
    assert rejected.value.status == 503


# The snapshot before the first read and while the database is unavailable


def test_store_is_empty_before_its_first_read():
    store = ConfigStore()

    assert (store.running, store.fresh, store.fault) == (False, False, "")
    assert (store.snapshot.revision, dict(store.snapshot.keys)) == (-1, {})


@pytest.mark.django_db(transaction=True)  # another thread reads the revision
def test_unresponsive_database_delays_neither_start_nor_stop():
    released = threading.Event()

    def load() -> Snapshot:
        released.wait(30)
        return Snapshot()

    Team.objects.create(name="platform")  # a change for the store to load
    blocked_store = ConfigStore(load, start_wait_s=0.01, stop_wait_s=0.01)

    blocked_store.start()
    thread = blocked_store.thread
    blocked_store.stop()

    assert not released.is_set()
    assert thread.is_alive()
    released.set()
    thread.join()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the database is no file")
@pytest.mark.django_db(transaction=True)
def test_start_without_the_database_uses_and_logs_the_cached_snapshot(settings, caplog, tmp_path):
    settings.DATA_DIR = tmp_path
    Team.objects.create(name="platform")
    key, _ = ApiKey.issue(Team.objects.get(), "ci")
    nowhere = {"env": "NO_SUCH_VARIABLE_HERE"}
    Upstream.objects.create(name="broken", dialect="chat", base_url="http://u/v1", secret=nowhere)
    config_cache.save_cached(config_cache.read_database())

    file = Path(connection.settings_dict["NAME"])
    moved = file.rename(file.with_suffix(".moved"))
    missing = "the database file cannot be reached: No such file or directory"
    started = ConfigStore()
    try:
        for _ in range(2):
            started.poll()
    finally:
        moved.rename(file)

    assert [record.getMessage() for record in caplog.records] == [
        f"the directory cannot be read: {missing}",
        "keys and routes are those that were last read",
        f"upstream broken cannot be used: {started.snapshot.broken['broken']}",
    ]
    assert (started.fresh, started.fault) == (False, "LedgerUnavailable")
    assert list(started.snapshot.keys) == [bytes(key.digest)]

    cached_snapshot = started.snapshot
    started.poll()  # the same revision, but read from the database
    assert (started.fresh, started.fault) == (True, "")
    assert started.snapshot is not cached_snapshot
    fresh_snapshot = started.snapshot
    started.poll()
    assert started.snapshot is fresh_snapshot


def test_model_list_has_models_allowed_for_key_and_team():
    team = TeamEntry(
        name="t", store_full=True, models=ModelAllowList(("a*", "b")), limits=NO_LIMITS
    )
    routes = [
        RouteEntry(model=model, team=owner, pattern=None, targets=(), weights=())
        for model, owner in (("a1", None), ("a2", "t"), ("a3", "u"), ("b", None), ("c", None))
    ]
    known = Snapshot(exact={(each.team, each.model): each for each in routes})
    expected_caller = caller(team=team, models=ModelAllowList(("a*", "c")))

    assert [each.model for each in known.models(expected_caller)] == ["a1", "a2"]
