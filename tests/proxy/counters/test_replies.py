"""A name is answered once, whoever asks: on one machine, and on all that share a Redis."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.counters.redis_store import client_of
from proxy.counters.replies import PREFIX, RedisReplies, Reply, ReplyFile, SharedReplies
from proxy.counters.store import StoreAway
from tests.fakes.redis_server import PATIENT_S

NOBODY = "redis://127.0.0.1:1"
DONE = Reply(b"digest", done=True, body=b'{"text": "\xc3\xa9"}')


@pytest.fixture
def client(redis_server):
    made = client_of(redis_server.url, PATIENT_S)
    yield made
    made.close()


@pytest.fixture(params=["file", "redis", "both"])
def replies(request, tmp_path):
    file = ReplyFile(tmp_path / "replies.sqlite3")
    if request.param == "file":
        return file
    shared = RedisReplies(request.getfixturevalue("client"))
    return shared if request.param == "redis" else SharedReplies(shared, file)


def test_the_first_serves_and_the_others_are_told(replies):
    assert replies.claim(1, "name", b"digest") is None
    assert replies.claim(1, "name", b"other") == Reply(b"digest")

    replies.settle(1, "name", DONE)

    assert replies.claim(1, "name", b"digest") == DONE


def test_a_name_belongs_to_one_key(replies):
    assert replies.claim(1, "name", b"digest") is None
    assert replies.claim(2, "name", b"digest") is None


def test_without_an_answer_the_name_is_free_again(replies):
    replies.claim(1, "name", b"digest")
    replies.free(1, "name")

    assert replies.claim(1, "name", b"other") is None


def test_an_answer_may_be_known_without_its_words(replies):
    replies.claim(1, "name", b"digest")
    replies.settle(1, "name", Reply(b"digest", done=True))

    assert replies.claim(1, "name", b"digest") == Reply(b"digest", done=True)


def test_of_many_at_once_one_serves(replies):
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: replies.claim(1, "name", b"digest"), range(24)))

    assert told.count(None) == 1
    assert set(told) == {None, Reply(b"digest")}


@pytest.fixture
def machines(client, tmp_path):
    """Two machines that share a Redis."""
    return [
        SharedReplies(RedisReplies(client), ReplyFile(tmp_path / f"{number}.sqlite3"))
        for number in range(2)
    ]


def test_what_one_machine_answered_the_other_tells(machines):
    one, other = machines
    assert one.claim(1, "name", b"digest") is None
    assert other.claim(1, "name", b"digest") == Reply(b"digest")

    one.settle(1, "name", DONE)

    assert other.claim(1, "name", b"digest") == DONE
    assert other.claim(1, "name", b"digest") == DONE


def test_without_redis_each_machine_remembers_for_itself(machines):
    nobody = RedisReplies(client_of(NOBODY))
    away = [SharedReplies(nobody, each._local) for each in machines]
    with pytest.raises(StoreAway):
        nobody.claim(1, "name", b"digest")

    assert [each.claim(1, "name", b"digest") for each in away] == [None, None]
    away[0].settle(1, "name", DONE)
    away[1].free(1, "name")

    assert [each.claim(1, "name", b"digest") for each in machines] == [DONE, None]


def test_what_none_of_us_wrote_is_nothing(machines, client):
    one, _ = machines
    one.claim(1, "name", b"digest")
    one._local.free(1, "name")
    (place,) = client.scan_iter(PREFIX + "*")
    client.set(place, "nonsense")

    assert one.claim(1, "name", b"digest") is None
    assert "name" not in place


def test_a_file_that_is_full_keeps_the_fact_and_no_answer(tmp_path, monkeypatch):
    replies = ReplyFile(tmp_path / "replies.sqlite3")
    monkeypatch.setattr("proxy.counters.replies.MOST_BYTES", 200_000)
    for name in ("first", "second"):
        replies.claim(1, name, b"digest")
        replies.settle(1, name, Reply(b"digest", done=True, body=b"x" * 300_000))

    assert replies.claim(1, "first", b"digest") == Reply(b"digest", done=True, body=b"x" * 300_000)
    assert replies.claim(1, "second", b"digest") == Reply(b"digest", done=True)
