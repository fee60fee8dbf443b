"""Limits of requests to Django: concurrency, queue, body size, rate and cache."""

import asyncio
import json

import pytest

from proxy.gateway.http.request_body import body_memory
from proxy.server.django_limits import (
    MAX_CACHED,
    MAX_CONCURRENT,
    MAX_PER_MINUTE,
    MAX_WAITING,
    BoundedPages,
)

STALLED = b"never comes"


class Page:
    """An application that waits for ``may_start`` and ``may_end``, and counts requests."""

    def __init__(self, status=200):
        self.status = status
        self.bodies = []
        self.running = 0
        self.may_start = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, scope, receive, send):
        self.bodies.append((await receive())["body"])
        self.running += 1
        await self.may_start.wait()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        self.running -= 1


class Caller:
    def __init__(self, pages, path="/admin/", method="GET", *, host=b"h", query=b"", sends=(b"",)):
        self.sent = []
        self._pieces = [*sends]
        scope = {
            "type": "http", "path": path, "method": method, "query_string": query,
            "headers": [(b"host", host)],
        }  # fmt: skip
        self.task = asyncio.create_task(pages(scope, self.receive, self.send))

    async def receive(self):
        if self._pieces in ([], [STALLED]):
            await asyncio.Event().wait()
        piece = self._pieces.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent[1:])


async def run_pending_tasks():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_concurrent_responses_are_limited_until_their_first_byte():
    page = Page()
    pages = BoundedPages(page)
    callers = [Caller(pages) for _ in range(MAX_CONCURRENT + 3)]
    await run_pending_tasks()
    assert len(page.bodies) == MAX_CONCURRENT

    page.may_end.clear()  # slow readers do not use a slot
    page.may_start.set()
    await run_pending_tasks()
    assert len(page.bodies) == MAX_CONCURRENT + 3

    page.may_end.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert {caller.body for caller in callers} == {b"ab"}


async def test_a_request_above_the_queue_limit_is_rejected():
    page = Page()
    pages = BoundedPages(page)
    callers = [Caller(pages) for _ in range(MAX_CONCURRENT + MAX_WAITING)]
    await run_pending_tasks()
    late = Caller(pages)
    await late.task

    assert late.status == 529
    assert json.loads(late.body)["error"]["type"] == "overloaded_error"
    page.may_start.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert {caller.status for caller in callers} == {200}


async def test_a_failed_or_cancelled_response_releases_its_slot():
    async def broken(scope, receive, send):
        raise RuntimeError

    pages = BoundedPages(broken)
    for _ in range(2 * MAX_CONCURRENT):
        with pytest.raises(RuntimeError):
            await Caller(pages).task
    page = Page()
    pages = BoundedPages(page)
    for _ in range(2 * MAX_CONCURRENT):
        caller = Caller(pages)
        await run_pending_tasks()
        caller.task.cancel()
        await asyncio.wait([caller.task])
    assert len(page.bodies) == 2 * MAX_CONCURRENT


async def test_a_body_is_passed_in_one_piece_and_counted():
    page = Page()
    pages = BoundedPages(page)
    caller = Caller(pages, method="POST", sends=[b"one ", b"two"])
    await run_pending_tasks()

    assert page.bodies == [b"one two"]
    assert body_memory.reserved >= 7
    page.may_start.set()
    await caller.task
    assert caller.status == 200


async def test_a_body_above_the_limit_is_rejected(settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    page = Page()
    caller = Caller(BoundedPages(page), method="POST", sends=[b"x" * 6, b"x" * 5, b"x"])
    await caller.task

    assert caller.status == 413
    assert page.bodies == []


async def test_an_incomplete_body_is_rejected_after_a_timeout(settings):
    settings.BODY_TIMEOUT_S = 0.01
    page = Page()
    caller = Caller(BoundedPages(page), method="POST", sends=[b"x", STALLED])
    await caller.task

    assert caller.status == 408
    assert page.bodies == []


async def test_a_client_that_leaves_before_the_end_of_its_body_gets_no_response():
    page = Page()
    caller = Caller(BoundedPages(page), method="POST", sends=[b"x", None])
    await caller.task

    assert (caller.sent, page.bodies) == ([], [])


async def test_a_public_page_is_cached_for_each_host():
    page = Page()
    page.may_start.set()
    pages = BoundedPages(page)

    async def request(**fields):
        caller = Caller(pages, "/api/v1/schema/", **fields)
        await caller.task
        return caller.status, caller.body

    assert await request(method="HEAD") == (200, b"ab")  # a response to HEAD is not cached
    assert [await request() for _ in range(3)] == [(200, b"ab")] * 3
    assert len(page.bodies) == 2
    assert await request(method="HEAD") == (200, b"")
    assert len(page.bodies) == 2
    for fields in ({"host": b"other"}, {"query": b"format=json"}, {"method": "POST"}):
        before = len(page.bodies)
        await request(**fields)
        assert len(page.bodies) == before + 1


@pytest.mark.parametrize(("method", "path"), MAX_PER_MINUTE)
async def test_expensive_pages_have_a_rate_limit(method, path):
    page = Page()
    page.may_start.set()
    pages = BoundedPages(page)
    limit = MAX_PER_MINUTE[method, path]
    callers = [Caller(pages, path, method) for _ in range(limit + 5)]
    await asyncio.gather(*(caller.task for caller in callers))
    other = Caller(pages, "/admin/")
    await other.task

    assert [caller.status for caller in callers].count(200) in (
        limit,
        limit + 1,
    )  # the bucket refills during the test
    assert callers[-1].status == 429
    assert dict(callers[-1].sent[0]["headers"])[b"retry-after"].isdigit()
    assert other.status == 200


async def test_the_cache_of_public_pages_is_bounded_and_has_no_errors():
    page = Page()
    page.may_start.set()
    pages = BoundedPages(page)
    for number in range(3 * MAX_CACHED):
        await Caller(pages, "/api/v1/docs/", host=b"%d" % number).task
    assert len(pages.cache) == MAX_CACHED

    page.status = 400
    pages = BoundedPages(page)
    await Caller(pages, "/api/v1/docs/").task
    assert pages.cache == {}
