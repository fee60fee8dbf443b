"""Django's side of the server: how many answers at once, how large a body, what is kept."""

import asyncio
import json

import pytest

from proxy.gateway.body_memory import body_memory
from proxy.pages import A_MINUTE, AT_ONCE, MOST_KEPT, MOST_WAITING, BoundedPages
from tests.proxy.gateway.conftest import tuned  # noqa: F401 - a fixture

STALLED = b"never comes"


class Page:
    """An application that answers when it may, and counts."""

    def __init__(self, status=200):
        self.status = status
        self.bodies = []
        self.running = 0
        self.answers = asyncio.Event()
        self.ends = asyncio.Event()
        self.ends.set()

    async def __call__(self, scope, receive, send):
        self.bodies.append((await receive())["body"])
        self.running += 1
        await self.answers.wait()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await self.ends.wait()
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        self.running -= 1


class Caller:
    def __init__(self, pages, path="/admin/", method="GET", *, host=b"h", query=b"", sends=(b"",)):
        self.sent = []
        self._left = [*sends]
        scope = {
            "type": "http", "path": path, "method": method, "query_string": query,
            "headers": [(b"host", host)],
        }  # fmt: skip
        self.task = asyncio.create_task(pages(scope, self.receive, self.send))

    async def receive(self):
        if self._left in ([], [STALLED]):
            await asyncio.Event().wait()
        piece = self._left.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(self._left)}

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent[1:])


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_few_answers_are_made_at_once_and_the_next_when_one_begins():
    page = Page()
    pages = BoundedPages(page)
    callers = [Caller(pages) for _ in range(AT_ONCE + 3)]
    await settled()
    assert len(page.bodies) == AT_ONCE

    page.ends.clear()  # their clients read slowly: that costs no turn
    page.answers.set()
    await settled()
    assert len(page.bodies) == AT_ONCE + 3

    page.ends.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert {caller.body for caller in callers} == {b"ab"}


async def test_who_comes_when_too_many_wait_is_refused():
    page = Page()
    pages = BoundedPages(page)
    callers = [Caller(pages) for _ in range(AT_ONCE + MOST_WAITING)]
    await settled()
    late = Caller(pages)
    await late.task

    assert late.status == 529
    assert json.loads(late.body)["error"]["type"] == "overloaded_error"
    page.answers.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert {caller.status for caller in callers} == {200}


async def test_a_turn_is_given_back_by_an_answer_that_fails_and_by_one_that_is_cancelled():
    async def broken(scope, receive, send):
        raise RuntimeError

    pages = BoundedPages(broken)
    for _ in range(2 * AT_ONCE):
        with pytest.raises(RuntimeError):
            await Caller(pages).task
    page = Page()
    pages = BoundedPages(page)
    for _ in range(2 * AT_ONCE):
        caller = Caller(pages)
        await settled()
        caller.task.cancel()
        await asyncio.wait([caller.task])
    assert len(page.bodies) == 2 * AT_ONCE


async def test_a_body_comes_whole_and_is_counted():
    page = Page()
    pages = BoundedPages(page)
    caller = Caller(pages, method="POST", sends=[b"one ", b"two"])
    await settled()

    assert page.bodies == [b"one two"]
    assert body_memory.held >= 7
    page.answers.set()
    await caller.task
    assert caller.status == 200


async def test_a_body_beyond_the_limit_is_refused(settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    page = Page()
    caller = Caller(BoundedPages(page), method="POST", sends=[b"x" * 6, b"x" * 5, b"x"])
    await caller.task

    assert caller.status == 413
    assert page.bodies == []


async def test_a_body_that_does_not_come_is_refused(tuned):  # noqa: F811
    tuned(body_timeout_s=0.01)
    page = Page()
    caller = Caller(BoundedPages(page), method="POST", sends=[b"x", STALLED])
    await caller.task

    assert caller.status == 408
    assert page.bodies == []


async def test_nobody_is_answered_who_left_before_the_body_was_here():
    page = Page()
    caller = Caller(BoundedPages(page), method="POST", sends=[b"x", None])
    await caller.task

    assert (caller.sent, page.bodies) == ([], [])


async def test_a_public_page_is_made_once_for_each_host():
    page = Page()
    page.answers.set()
    pages = BoundedPages(page)

    async def ask(**fields):
        caller = Caller(pages, "/api/v1/schema/", **fields)
        await caller.task
        return caller.status, caller.body

    assert await ask(method="HEAD") == (200, b"ab")  # this page knows no HEAD; it is not kept
    assert [await ask() for _ in range(3)] == [(200, b"ab")] * 3
    assert len(page.bodies) == 2
    assert await ask(method="HEAD") == (200, b"")
    assert len(page.bodies) == 2
    for fields in ({"host": b"other"}, {"query": b"format=json"}, {"method": "POST"}):
        before = len(page.bodies)
        await ask(**fields)
        assert len(page.bodies) == before + 1


@pytest.mark.parametrize(("method", "path"), A_MINUTE)
async def test_what_costs_most_is_done_so_often_a_minute(method, path):
    page = Page()
    page.answers.set()
    pages = BoundedPages(page)
    most = A_MINUTE[method, path]
    callers = [Caller(pages, path, method) for _ in range(most + 5)]
    await asyncio.gather(*(caller.task for caller in callers))
    other = Caller(pages, "/admin/")
    await other.task

    assert [caller.status for caller in callers].count(200) in (most, most + 1)  # time passes
    assert callers[-1].status == 429
    assert dict(callers[-1].sent[0]["headers"])[b"retry-after"].isdigit()
    assert other.status == 200


async def test_few_public_pages_are_kept_and_none_that_is_an_error():
    page = Page()
    page.answers.set()
    pages = BoundedPages(page)
    for number in range(3 * MOST_KEPT):
        await Caller(pages, "/api/v1/docs/", host=b"%d" % number).task
    assert len(pages._kept) == MOST_KEPT

    page.status = 400
    pages = BoundedPages(page)
    await Caller(pages, "/api/v1/docs/").task
    assert pages._kept == {}
