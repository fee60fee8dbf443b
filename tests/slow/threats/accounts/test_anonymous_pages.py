"""Public pages cost little under many concurrent requests."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from django.conf import settings
from django.test import RequestFactory

from proxy.reports.api_docs import SchemaView
from proxy.reports.openapi import CachedGenerator
from tests.slow.threats import raw_http

PUBLIC = ("/api/v1/schema/", "/api/v1/docs/")


@pytest.mark.parametrize("path", PUBLIC)
def test_concurrent_requests_get_the_same_bytes(running, path):
    urls = [path, f"{path}?format=json"] * 20
    with ThreadPoolExecutor(40) as pool:
        replies = list(
            pool.map(lambda each: running.process.request("GET", each, authorized=False), urls)
        )

    assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
    assert len({reply.headers["request-id"] for reply in replies}) == len(replies)
    head = running.process.request("HEAD", path, authorized=False)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(replies[0].body))


def test_the_schema_is_built_once():
    class CountingGenerator(CachedGenerator):
        built: ClassVar = {}
        builds: ClassVar = []

        def parse(self, *args):  # each build calls it once
            self.builds.append(args)
            return super().parse(*args)

    started = threading.Barrier(20)

    def request_schema(number):
        request = RequestFactory().get(f"/api/v1/schema/?n={number}")
        started.wait(60)
        return SchemaView.as_view(generator_class=CountingGenerator)(request).render()

    with ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(request_schema, range(20)))

    assert {(one.status_code, one.content) for one in responses} == {(200, responses[0].content)}
    assert len(CountingGenerator.builds) == 1


def test_foreign_host_gets_no_public_page(running):
    assert running.process.request("GET", PUBLIC[0], authorized=False).status == 200
    reply = running.process.request("GET", PUBLIC[0], headers={"host": "evil.example"})

    assert reply.status == 400


@pytest.mark.parametrize("path", ["/admin/login/", "/api/v1/exports/", "/sign-in/callback/"])
def test_large_body_for_a_page_is_rejected(running, path):
    response = raw_http.send_raw(
        running.process.port,
        raw_http.post("", b"x", "content-length: 4000000", target=path),
        silence_s=60,
    )

    assert response.statuses == [413]
    assert b"request_too_large" in response.raw
    assert response.closed


def test_chunked_body_is_rejected_at_the_limit(running):
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    body = b"%x\r\n%b\r\n1\r\nx\r\n" % (limit, b"x" * limit)  # the last chunk is missing

    response = raw_http.send_raw(
        running.process.port,
        raw_http.post("", body, "transfer-encoding: chunked", target="/admin/login/"),
        silence_s=60,
    )

    assert response.statuses == [413]
