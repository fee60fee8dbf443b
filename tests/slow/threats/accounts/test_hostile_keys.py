"""The key check with hostile texts and similar keys, and the work that it does."""

import random
import sys

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.admission.auth import authenticate
from proxy.gateway.http.errors import HttpError
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.snapshot.config_snapshot import ConfigStore, Snapshot
from proxy.models import ApiKey
from proxy.secrets import KEY_MARK, digest_of, new_secret
from tests.proxy.admin import factories

SPECIAL_CHARACTERS = (
    "'",
    '"',
    "`",
    "\\",
    ";",
    "--",
    "/*",
    "%",
    "_",
    "{",
    "}",
    "$",
    "\x00",
    "\x1b",
    "\x7f",
    "é",
)
SHAPES = (
    "{0}", "sk-br-{0}", "{0}' OR '1'='1", "' UNION SELECT digest FROM proxy_apikey{0}",
    "x{0}; DROP TABLE proxy_apikey", "1 OR 1=1 {0}", "{0}) OR (1=1", "pg_sleep(10){0}",
    "${{jndi:ldap://x/{0}}}", "{{{{7*7}}}}{0}", "%27%20OR%201{0}", "../../{0}", "null{0}", "true{0}",
)  # fmt: skip
HOSTILE = [
    shape.format(quote * n) for shape in SHAPES for quote in SPECIAL_CHARACTERS for n in (1, 3)
]
HOSTILE += [
    "x" * 65_536,
    "'" * 20_000,
    " ",
    "\t",
    "Bearer",
    "Bearer Bearer x",
    "0",
    "None",
    "undefined",
]
HOSTILE += [KEY_MARK + "é" * 40, "sk-br-" + "\N{SNOWMAN}", "\u202egnp.exe", "A" * 513]
HOSTILE += [f"{KEY_MARK}{chr(n)}{'a' * 42}" for n in range(1, 65)]


def head_with(*headers: tuple[bytes, bytes]) -> RequestHeaders:
    return RequestHeaders(
        {"path": "/v1/messages", "headers": list(headers), "client": ("127.0.0.1", 1)}
    )


def rejection(store: ConfigStore, *headers: tuple[bytes, bytes]) -> tuple[int, str, str]:
    with pytest.raises(HttpError) as refused:
        authenticate(head_with(*headers), store=store)
    return refused.value.status, refused.value.error_type, refused.value.message


@pytest.fixture
def known():
    """Return a store with a fresh snapshot that has one key."""
    store = ConfigStore()
    store.snapshot = Snapshot(keys={digest_of("sk-br-known"): None})
    store.fresh = True
    return store


def test_list_has_five_hundred_hostile_keys():
    assert len(set(HOSTILE)) >= 500


@pytest.mark.django_db
def test_hostile_key_is_rejected_without_a_database_query(known):
    with CaptureQueriesContext(
        connection,
    ) as queries:
        answers = set()
        for text in HOSTILE:
            raw = text.encode("utf-8")
            answers.add(rejection(known, (b"x-api-key", raw)))
            answers.add(rejection(known, (b"authorization", b"Bearer " + raw)))

    answers -= {
        (401, "authentication_error", "no gateway key; send x-api-key or Authorization: Bearer")
    }
    assert answers == {(401, "authentication_error", "invalid gateway key")}
    assert len(queries) == 0


@pytest.mark.django_db
def test_reports_look_up_a_hostile_key_by_digest_in_one_query():
    factories.key("reports", scopes=["reports"])
    client = Client()
    statements, bodies = set(), set()
    for text in random.Random(1).sample(HOSTILE, 60):  # noqa: S311 - seeded for repeatable tests
        if not text.isascii() or not text.strip() or "\x00" in text:
            continue  # not valid in an HTTP header
        with CaptureQueriesContext(connection) as queries:
            answer = client.get("/api/v1/me/", headers={"x-api-key": text})
        assert answer.status_code == 401
        assert len(queries) <= 1
        bodies.add(answer.json()["error"]["message"])
        for query in queries:
            statements.add(query["sql"].partition("WHERE")[0])
            assert text.strip() not in query["sql"] or len(text) < 4

    assert len(statements) == 1
    assert len(bodies) == 1


@given(st.data())
def test_similar_keys_have_different_digests(data):
    """The whole digest decides, so a shared prefix, suffix or middle does not matter."""
    text = data.draw(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=80)
    )
    place = data.draw(st.integers(0, len(text) - 1))
    other = chr(33 + (ord(text[place]) - 32) % 94)
    other_text = data.draw(
        st.sampled_from([text[:place] + other + text[place + 1 :], text + other, text[:place]])
    )

    snapshot = Snapshot(keys={digest_of(text): "ada"})

    assert snapshot.keys.get(digest_of(text)) == "ada"
    assert snapshot.keys.get(digest_of(other_text)) is None


def test_digests_of_100000_keys_are_distinct():
    one = str(new_secret())

    digests = {digest_of(f"{one[:-6]}{n:06d}") for n in range(100_000)}

    assert len(digests) == 100_000
    assert {len(digest) for digest in digests} == {32}


def work_of(key: str) -> list[str]:
    """Return the names of all calls that the check makes for a key, in order."""
    calls: list[str] = []
    head = head_with((b"x-api-key", key.encode()))

    def record_call(frame, event, arg):
        if event in {"call", "c_call"}:
            calls.append(frame.f_code.co_name if event == "call" else arg.__name__)

    before = sys.getprofile()
    sys.setprofile(record_call)
    try:
        authenticate(head)
    except HttpError:
        pass
    finally:
        sys.setprofile(before)
    return calls


def test_nearly_correct_key_takes_the_same_calls_as_a_wrong_key(known):
    """The check looks up a digest of the whole key, so its time does not depend on a shared prefix."""
    right = "sk-br-known"
    work_of(right[:-1] + "x")  # fills caches

    near_miss, wrong = work_of(right[:-1] + "x"), work_of("x" + right[1:])

    assert near_miss == wrong
    assert "digest" in near_miss


@pytest.mark.django_db
def test_database_has_no_secret_part_of_a_key():
    key, secret = factories.key("ben")

    row = {name: str(value) for name, value in ApiKey.objects.filter(pk=key.pk).values()[0].items()}

    assert not [name for name, value in row.items() if secret[len(row["prefix"]) :] in value]
    assert secret.startswith(row["prefix"])
    assert len(secret) - len(row["prefix"]) >= 34  # the hidden part has more than 200 bits
