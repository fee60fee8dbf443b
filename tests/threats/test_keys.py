"""The key check: hostile texts, keys that look alike, and what the check looks at."""

import random
import sys

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.auth import authenticate
from proxy.gateway.directory import Snapshot, directory
from proxy.gateway.head import Head
from proxy.gateway.refusals import Refusal
from proxy.models import ApiKey
from proxy.secrets import KEY_MARK, digest_of, new_secret
from tests.proxy.admin import cast

QUOTES = (
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
HOSTILE = [shape.format(quote * n) for shape in SHAPES for quote in QUOTES for n in (1, 3)]
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


def head_with(*headers: tuple[bytes, bytes]) -> Head:
    return Head({"path": "/v1/messages", "headers": list(headers), "client": ("127.0.0.1", 1)})


def told(*headers: tuple[bytes, bytes]) -> tuple[int, str, str]:
    with pytest.raises(Refusal) as refused:
        authenticate(head_with(*headers))
    return refused.value.status, refused.value.error_type, refused.value.message


@pytest.fixture
def known(monkeypatch):
    """A directory that knows one key and was read a moment ago."""
    monkeypatch.setattr(directory, "snapshot", Snapshot(keys={digest_of("sk-br-known"): None}))
    monkeypatch.setattr(directory, "fresh", True)


def test_there_are_five_hundred_hostile_keys():
    assert len(set(HOSTILE)) >= 500


@pytest.mark.django_db
def test_a_hostile_key_is_refused_as_any_wrong_one_and_asks_no_database(known):
    with CaptureQueriesContext(
        connection,
    ) as asked:
        answers = set()
        for text in HOSTILE:
            raw = text.encode("utf-8")
            answers.add(told((b"x-api-key", raw)))
            answers.add(told((b"authorization", b"Bearer " + raw)))

    answers -= {
        (401, "authentication_error", "no gateway key; send x-api-key or Authorization: Bearer")
    }
    assert answers == {(401, "authentication_error", "invalid gateway key")}
    assert len(asked) == 0


@pytest.mark.django_db
def test_the_reports_look_a_hostile_key_up_by_its_digest_in_one_constant_query():
    cast.key("board", scopes=["reports"])
    client = Client()
    statements, bodies = set(), set()
    for text in random.Random(1).sample(HOSTILE, 60):  # noqa: S311 - seeded on purpose
        if not text.isascii() or not text.strip() or "\x00" in text:
            continue  # no HTTP header carries these
        with CaptureQueriesContext(connection) as asked:
            answer = client.get("/api/v1/me/", headers={"x-api-key": text})
        assert answer.status_code == 401
        assert len(asked) <= 1
        bodies.add(answer.json()["error"]["message"])
        for query in asked:
            statements.add(query["sql"].partition("WHERE")[0])
            assert text.strip() not in query["sql"] or len(text) < 4

    assert len(statements) == 1
    assert len(bodies) == 1


@given(st.data())
def test_two_keys_that_look_alike_are_never_one(data):
    """Whatever they share, at either end or in the middle: the whole digest decides."""
    text = data.draw(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=80)
    )
    place = data.draw(st.integers(0, len(text) - 1))
    other = chr(33 + (ord(text[place]) - 32) % 94)
    twin = data.draw(
        st.sampled_from([text[:place] + other + text[place + 1 :], text + other, text[:place]])
    )

    snapshot = Snapshot(keys={digest_of(text): "ada"})

    assert snapshot.keys.get(digest_of(text)) == "ada"
    assert snapshot.keys.get(digest_of(twin)) is None


def test_a_hundred_thousand_keys_have_as_many_digests():
    one = str(new_secret())

    digests = {digest_of(f"{one[:-6]}{n:06d}") for n in range(100_000)}

    assert len(digests) == 100_000
    assert {len(digest) for digest in digests} == {32}


def work_of(key: str) -> list[str]:
    """Every call that the check makes for a key, in order."""
    calls: list[str] = []
    head = head_with((b"x-api-key", key.encode()))

    def note(frame, event, arg):
        if event in {"call", "c_call"}:
            calls.append(frame.f_code.co_name if event == "call" else arg.__name__)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        authenticate(head)
    except Refusal:
        pass
    finally:
        sys.setprofile(before)
    return calls


def test_a_key_that_is_almost_right_costs_the_same_work_as_one_that_is_all_wrong(known):
    """No comparison of secrets: a digest over the whole key is looked up, so no prefix is felt."""
    right = "sk-br-known"
    work_of(right[:-1] + "x")  # caches

    almost, wrong = work_of(right[:-1] + "x"), work_of("x" + right[1:])

    assert almost == wrong
    assert "digest" in almost


@pytest.mark.django_db
def test_the_database_holds_no_text_of_a_key():
    key, secret = cast.key("ben")

    row = {name: str(value) for name, value in ApiKey.objects.filter(pk=key.pk).values()[0].items()}

    assert not [name for name, value in row.items() if secret[len(row["prefix"]) :] in value]
    assert secret.startswith(row["prefix"])
    assert len(secret) - len(row["prefix"]) >= 34  # what is not shown: above 200 bits
