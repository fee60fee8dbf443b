"""Exports of any size leave without ever being in memory whole."""

import csv

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncRequestFactory, RequestFactory
from django.test.utils import CaptureQueriesContext

from proxy.models import Exchange
from proxy.reports.answers import LINES_A_CHUNK, columns_of, csv_lines, streamed
from proxy.reports.rows import RequestRow, request_row
from tests.proxy.admin import cast

A_MILLION = 1_000_000


@pytest.mark.django_db
@pytest.mark.parametrize("factory", [RequestFactory, AsyncRequestFactory])
@pytest.mark.parametrize("kind", ["csv", "ndjson"])
def test_a_chunk_leaves_before_the_next_rows_are_made(kind, factory):
    """However many rows there are, no more than two chunks of them have been made ahead."""
    row = request_row(cast.record())
    made = 0

    def rows():
        nonlocal made
        for _ in range(A_MILLION):
            made += 1
            yield row

    chunks = streamed(factory().get("/"), rows(), kind, "requests").streaming_content
    ahead = []

    async def read():  # as our server does
        for number in range(4):
            assert await anext(chunks)
            ahead.append(made - number * LINES_A_CHUNK)
        await chunks.aclose()

    if factory is AsyncRequestFactory:
        async_to_sync(read)()
    else:
        for number in range(4):
            assert next(chunks)
            ahead.append(made - number * LINES_A_CHUNK)

    assert max(ahead) <= 2 * LINES_A_CHUNK


@pytest.mark.django_db
def test_rows_are_read_from_the_database_as_they_leave(client, django_assert_num_queries):
    """One query for all rows, whose cursor is walked: no page is read twice."""
    first = cast.record()
    fields = {f.attname: getattr(first, f.attname) for f in Exchange._meta.concrete_fields}
    Exchange.objects.bulk_create(Exchange(**{**fields, "id": f"req_{n:026d}"}) for n in range(600))
    secret = cast.key("finance", scopes=["admin"])[1]
    url = "/api/v1/requests/?from=2026-11-20&to=2026-11-21&format=csv"

    with django_assert_num_queries(3):  # the key, its instants on SQLite, the rows
        answer = client.get(url, headers={"x-api-key": secret})

    assert len(answer.content.splitlines()) == 602


@pytest.mark.django_db
def test_the_columns_of_a_csv_do_not_depend_on_its_first_row():
    """A row without user, error or tags comes first; what the next one says is all there."""
    plain = cast.record()
    failed = cast.record(
        opening={"user": "ada", "tags": {"ticket": "42"}},
        closing={"outcome": "upstream_error", "error_type": "api_error", "error_message": "broken"},
    )

    lines = csv_lines(map(request_row, (plain, failed)), columns_of(RequestRow()))
    first, second = csv.DictReader(lines)

    assert (first["user.id"], first["error.type"]) == ("", "")
    assert (second["user.id"], second["error.type"]) == ("user_ada", "api_error")
    assert second["error.message"] == "broken"
    assert second["tags"] == '{"ticket": "42"}'
    assert second["token_sources.input"] in {"reported", "estimated", "missing"}


@pytest.mark.django_db
def test_a_file_of_sessions_takes_a_fixed_number_of_queries(client):
    secret = cast.key("finance", scopes=["admin"])[1]
    url = "/api/v1/sessions/?from=2026-11-20&to=2026-11-21&format=csv"

    def taken():
        with CaptureQueriesContext(connection) as queries:
            answer = client.get(url, headers={"x-api-key": secret})
            lines = answer.content.splitlines()
        return len(lines), len(queries)

    cast.record(opening={"session_id": "first"})
    one, few = taken()
    for n in range(9):
        cast.record(opening={"session_id": f"s{n}"})

    assert (one, *taken()) == (2, 11, few)
