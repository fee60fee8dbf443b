"""Pages that anybody may read cost little, however many ask at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf import settings

from proxy.reports import docs

from . import wire

PUBLIC = ("/api/v1/schema/", "/api/v1/docs/")


@pytest.mark.parametrize("path", PUBLIC)
def test_many_at_once_get_the_same_bytes(running, path):
    asked = [path, f"{path}?format=json"] * 20
    with ThreadPoolExecutor(40) as crowd:
        replies = list(
            crowd.map(lambda each: running.process.ask("GET", each, authorised=False), asked)
        )

    assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
    assert len({reply.headers["request-id"] for reply in replies}) == len(replies)
    head = running.process.ask("HEAD", path, authorised=False)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(replies[0].body))


@pytest.mark.parametrize("path", PUBLIC)
def test_it_is_built_once(gateway, monkeypatch, path):
    built, lock = [], threading.Lock()
    schema = docs.schema

    def counted():
        with lock:
            built.append(path)
        return schema()

    monkeypatch.setattr(docs, "schema", counted)
    docs._ready.clear()
    with ThreadPoolExecutor(20) as crowd:
        asked = [f"{path}?n={number}" for number in range(20)]  # none of them from memory
        replies = list(crowd.map(lambda each: gateway.ask("GET", each), asked))

    assert {reply.status for reply in replies} == {200}
    assert built == [path]


def test_a_foreign_host_gets_no_public_page(running):
    assert running.process.ask("GET", PUBLIC[0], authorised=False).status == 200
    reply = running.process.ask("GET", PUBLIC[0], headers={"host": "evil.example"})

    assert reply.status == 400


@pytest.mark.parametrize("path", ["/admin/login/", "/api/v1/exports/", "/sign-in/callback/"])
def test_a_large_body_for_a_page_is_refused(running, path):
    heard = wire.say(
        running.process.port, wire.post("", b"x", "content-length: 4000000", target=path)
    )

    assert heard.statuses == [413]
    assert b"request_too_large" in heard.raw
    assert heard.closed


def test_a_body_in_chunks_is_refused_at_the_limit(running):
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    body = b"%x\r\n%b\r\n1\r\nx\r\n" % (most, b"x" * most)  # its end never comes

    heard = wire.say(
        running.process.port,
        wire.post("", body, "transfer-encoding: chunked", target="/admin/login/"),
    )

    assert heard.statuses == [413]
