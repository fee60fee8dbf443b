"""Streamed downloads are never completely in memory."""

import csv

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncRequestFactory, RequestFactory
from django.test.utils import CaptureQueriesContext

from proxy.models import Exchange
from proxy.reports.core.rendering import LINES_PER_CHUNK, column_names, csv_lines, stream_rows
from proxy.reports.requests.serializers import RequestRow, request_row
from tests.proxy.admin import factories

A_MILLION = 1_000_000


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "factory"), [("ndjson", RequestFactory), ("csv", AsyncRequestFactory)]
)
def test_a_chunk_is_sent_before_the_next_rows_are_computed(kind, factory):
    """At most two chunks of rows are computed ahead, whatever the number of rows."""
    row = request_row(factories.record())
    count = 0

    def rows():
        nonlocal count
        for _ in range(A_MILLION):
            count += 1
            yield row

    chunks = stream_rows(
        factory().get("/"), rows(), kind, "requests", column_names(RequestRow())
    ).streaming_content
    computed_ahead = []

    async def read():  # as an ASGI server does
        for number in range(3):
            assert await anext(chunks)
            computed_ahead.append(count - number * LINES_PER_CHUNK)
        await chunks.aclose()

    if factory is AsyncRequestFactory:
        async_to_sync(read)()
    else:
        for number in range(3):
            assert next(chunks)
            computed_ahead.append(count - number * LINES_PER_CHUNK)

    assert max(computed_ahead) <= 2 * LINES_PER_CHUNK


@pytest.mark.django_db
def test_rows_are_read_with_one_query(client, django_assert_num_queries):
    """One query reads all rows through a database cursor."""
    first = factories.record()
    fields = {f.attname: getattr(first, f.attname) for f in Exchange._meta.concrete_fields}
    Exchange.objects.bulk_create(Exchange(**{**fields, "id": f"req_{n:026d}"}) for n in range(600))
    secret = factories.key("finance", scopes=["admin"])[1]
    url = "/api/v1/requests/?from=2026-11-20&to=2026-11-21&format=csv"

    # The key, its timestamps on SQLite, the audit entry, the rows, the archived months, the teams.
    with django_assert_num_queries(6):
        answer = client.get(url, headers={"x-api-key": secret})

    assert len(answer.content.splitlines()) == 602


@pytest.mark.django_db
def test_the_columns_of_a_csv_do_not_depend_on_its_first_row():
    """The first row has no user, error or tags; the columns of the second are complete."""
    plain = factories.record()
    failed = factories.record(
        opening={"user": "ada", "tags": {"ticket": "42"}},
        closing={"outcome": "upstream_error", "error_type": "api_error", "error_message": "broken"},
    )

    lines = csv_lines(map(request_row, (plain, failed)), column_names(RequestRow()))
    first, second = csv.DictReader(lines)

    assert (first["user.id"], first["error.type"]) == ("", "")
    assert (second["user.id"], second["error.type"]) == ("ada", "api_error")
    assert second["error.message"] == "broken"
    assert second["tags"] == '{"ticket": "42"}'
    assert second["token_sources.input"] in {"reported", "estimated", "missing"}


@pytest.mark.django_db
def test_a_file_of_sessions_takes_a_fixed_number_of_queries(client):
    secret = factories.key("finance", scopes=["admin"])[1]
    url = "/api/v1/sessions/?from=2026-11-20&to=2026-11-21&format=csv"

    def lines_and_queries():
        with CaptureQueriesContext(connection) as queries:
            answer = client.get(url, headers={"x-api-key": secret})
            lines = answer.content.splitlines()
        return len(lines), len(queries)

    factories.record(opening={"session_id": "first"})
    one, query_count = lines_and_queries()
    for n in range(9):
        factories.record(opening={"session_id": f"s{n}"})

    assert (one, *lines_and_queries()) == (2, 11, query_count)
