"""The key check, answer by answer: who is known, and whether they may."""

import threading
from dataclasses import replace

import pytest

from proxy.conf import conf
from proxy.gateway import auth, configuration
from proxy.gateway import directory as module
from proxy.gateway.auth import LONGEST_KEY, authenticate
from proxy.gateway.directory import (
    NO_LIMITS,
    Caller,
    Directory,
    Globs,
    RouteEntry,
    Snapshot,
    TeamEntry,
    directory,
)
from proxy.gateway.head import Head
from proxy.gateway.refusals import Refusal
from proxy.key_validity import MESSAGES, End, Reason
from proxy.models import ApiKey, Team, Upstream
from proxy.secrets import digest_of

NOW = 1_000.0
LONG = "k" * LONGEST_KEY
NONE = "no gateway key; send x-api-key or Authorization: Bearer"
DIFFER = "x-api-key and Authorization carry different keys; send one"


def caller(**fields) -> Caller:
    team = TeamEntry(name="t", store_full=True, models=Globs(), limits=NO_LIMITS)
    return Caller(**{
        "key_id": 1, "key_name": "k", "meter": "t/k", "team": team, "user": "",
        "scopes": frozenset({"messages"}), "models": Globs(), "limits": NO_LIMITS, "ip_allow": (),
        "strict": False, "events": frozenset(), **fields,
    })  # fmt: skip


@pytest.fixture
def knows(monkeypatch):
    """Let the directory know ``good`` and ``LONG``, in the second ``NOW``."""

    def make(fresh: bool = True, **fields) -> Caller:
        made = caller(**fields)
        keys = {digest_of(key): made for key in ("good", LONG)}
        monkeypatch.setattr(directory, "snapshot", Snapshot(keys=keys))
        monkeypatch.setattr(directory, "fresh", fresh)
        monkeypatch.setattr(auth.time, "time", lambda: NOW)
        return made

    return make


def head(key: bytes | None = b"good", bearer: bytes | None = None) -> Head:
    headers = [(b"x-api-key", key), (b"authorization", bearer)]
    given = [(name, value) for name, value in headers if value is not None]
    return Head({"path": "/v1/messages", "headers": given, "client": ("192.0.2.7", 1)})


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
def test_a_known_key_is_found_however_it_is_sent(knows, key, bearer):
    made = knows(ip_allow=("192.0.2.0/24",), ends=(End(Reason.EXPIRED, NOW + 1),))

    assert authenticate(head(key, bearer)) is made


@pytest.mark.parametrize(
    ("key", "bearer", "status", "kind", "message"),
    [
        (None, None, 401, "authentication_error", NONE),
        (b" ", b"Basic good", 401, "authentication_error", NONE),
        (None, b"good", 401, "authentication_error", NONE),
        (b"other", None, 401, "authentication_error", "invalid gateway key"),
        (LONG.encode() + b"k", None, 401, "authentication_error", "invalid gateway key"),
        (b"g\xc3\xa9", None, 401, "authentication_error", "invalid gateway key"),
        (b"good", b"Bearer other", 400, "invalid_request_error", DIFFER),
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused_in_these_words(knows, key, bearer, status, kind, message):  # noqa: PLR0917
    knows()

    with pytest.raises(Refusal) as refused:
        authenticate(head(key, bearer))

    told = refused.value
    assert (told.status, told.error_type, told.message) == (status, kind, message)


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
def test_a_known_key_may_not_be_used(knows, fields, status, message):
    knows(**fields)

    with pytest.raises(Refusal) as refused:
        authenticate(head())

    kind = "authentication_error" if status == 401 else "permission_error"
    told = refused.value
    assert (told.status, told.error_type, told.message) == (status, kind, message)


def test_the_scope_is_the_one_that_is_asked_for(knows):
    made = knows(scopes=frozenset({"reports"}))

    assert authenticate(head(), scope="reports") is made


def test_an_unknown_key_may_be_a_new_one_while_nobody_can_look(knows):
    made = knows(fresh=False)

    assert authenticate(head()) is made
    with pytest.raises(Refusal) as refused:
        authenticate(head(b"other"))
    assert refused.value.status == 503


# What the check knows: the directory, before its first look and while nobody can look


def test_before_its_first_look_a_directory_vouches_for_nothing():
    unread = Directory()

    assert (unread.running, unread.fresh, unread.fault) == (False, False, "")
    assert (unread.snapshot.revision, dict(unread.snapshot.keys)) == (-1, {})


def test_a_database_that_does_not_answer_holds_up_neither_start_nor_stop(monkeypatch):
    answered = threading.Event()

    def load() -> Snapshot:
        answered.wait(30)
        return Snapshot()

    monkeypatch.setattr(module, "present", load)
    monkeypatch.setattr(module, "START_WAIT_S", 0.01)
    monkeypatch.setattr(module, "STOP_WAIT_S", 0.01)
    stuck = Directory(load)

    stuck.start()
    thread = stuck._thread
    stuck.stop()

    assert not answered.is_set()
    assert thread.is_alive()
    answered.set()
    thread.join()


@pytest.mark.django_db(transaction=True)
def test_a_start_without_the_database_says_what_it_goes_on_with(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(configuration, "conf", replace(conf, data_dir=tmp_path))
    Team.objects.create(name="platform")
    key, _ = ApiKey.issue(Team.objects.get(), "ci")
    nowhere = {"env": "NO_SUCH_VARIABLE_HERE"}
    Upstream.objects.create(name="odd", dialect="chat", base_url="http://u/v1", secret=nowhere)
    configuration.keep(configuration.read())

    def away() -> None:
        raise OSError("no route to it")

    monkeypatch.setattr(module, "present", away)
    started = Directory()
    for _ in range(2):
        started.look()

    assert [record.getMessage() for record in caplog.records] == [
        "the directory cannot be read: no route to it",
        "keys and routes are those that were last seen",
        f"upstream odd cannot be used: {started.snapshot.broken['odd']}",
    ]
    assert (started.fresh, started.fault) == (False, "OSError")
    assert list(started.snapshot.keys) == [bytes(key.digest)]

    monkeypatch.setattr(module, "present", lambda: None)
    recalled = started.snapshot
    started.look()  # of the same revision, but not believed any longer
    assert (started.fresh, started.fault) == (True, "")
    assert started.snapshot is not recalled
    believed = started.snapshot
    started.look()
    assert started.snapshot is believed


def test_a_list_of_models_has_what_both_the_key_and_its_team_may_use():
    team = TeamEntry(name="t", store_full=True, models=Globs(("a*", "b")), limits=NO_LIMITS)
    routes = [
        RouteEntry(model=model, team=owner, pattern=None, targets=(), weights=())
        for model, owner in (("a1", None), ("a2", "t"), ("a3", "u"), ("b", None), ("c", None))
    ]
    known = Snapshot(exact={(each.team, each.model): each for each in routes})
    made = caller(team=team, models=Globs(("a*", "c")))

    assert [each.model for each in known.models(made)] == ["a1", "a2"]
