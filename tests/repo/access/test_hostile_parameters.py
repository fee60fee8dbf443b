"""No part of a path, parameter of a report or page, or body of a write makes the server fail (5xx).

The parameters are those of the OpenAPI document for the API, and those that the pages of the admin
read, each with values that parsers and databases reject.
"""

import json
import re

import pytest
from django.contrib.admin import site

from tests.fakes.openapi import schema

from .access_tables import DJANGO, REST

ADMIN_NAMES = ("q", "p", "o", "all", "id", "tab", "path", "format", "from", "to", "days", "user",
               "team", "model", "after", "e", "_to_field", "_popup")  # fmt: skip
"""Parameters of pages of the admin."""

pytestmark = pytest.mark.django_db

MANY = "&".join(f"a{number}=1" for number in range(2_000))
VALUES = {
    "NUL": "a%00b",
    "invalid UTF-8": "%ff%fe",
    "long": "x" * 1_500,
    "many digits": "9" * 1_500,
    "more than 64 bits": "9223372036854775808",
    "negative": "-9223372036854775809",
    "exponent": "1e400",
    "no number": "NaN",
    "surrogate": "%ed%a0%80",
    "far year": "99999-12-31T00:00:00Z",
    "list": "1,%00,%ff",
    "year 9999": "9999-12-31T23:59:59-14:00",
}
PATH_VALUES = {**VALUES, "line feed": "1%0A", "CR LF": "a%0D%0Ab%3A c", "dots": "%2E%2E%2F1"}
NESTED = "[" * 100_000
BODIES = {
    "nested lists": NESTED.encode(),
    "nested objects": b'{"a":' * 50_000,
    "nested value": b'{"name":' + b"[" * 900 + b"]" * 900 + b"}",
    "invalid UTF-8": b'{"name":"\xff\xfe"}',
    "NUL": b'{"name":"a\\u0000b"}',
    "surrogate": b'{"name":"\\ud800"}',
    "huge number": b'{"name":' + b"9" * 5_000 + b"}",
    "exponent": b'{"name":1e400}',
    "NaN": b'{"name":NaN}',
    "no object": b"null",
    "list": b"[1]",
    "many names": json.dumps({f"a{number}": 1 for number in range(5_000)}).encode(),
}
READS = [url for url in DJANGO if f"{url}/" not in DJANGO and "logout" not in url]
"""One of two spellings of each URL."""


def parameters_of(url):
    """Return the names of the query parameters that a report or list reads."""
    for known, operations in schema()["paths"].items():
        if same_path(known, url):
            found = operations.get("get", {}).get("parameters", ())
            return [one["name"] for one in found if one["in"] == "query"]
    names = [name for name in ADMIN_NAMES if url.startswith("admin/")]
    for model, admin in site._registry.items():
        if f"admin/{model._meta.app_label}/{model._meta.model_name}/" == url:
            names += [f"{one}__exact" for one in admin.list_filter if isinstance(one, str)]
    return names


def same_path(known, url):
    """Compare a path of the OpenAPI document with a route of Django."""
    one, other = known.strip("/").split("/"), url.strip("/").split("/")
    return len(one) == len(other) and all(
        a == b or (a[:1] == "{" and b[:1] == "<") for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("url", READS)
def test_two_thousand_parameters_do_not_make_the_server_fail(send, url):
    """Django parses at most ``DATA_UPLOAD_MAX_NUMBER_FIELDS``."""
    assert send("root", "GET", url, f"?{MANY}").status_code < 500


@pytest.mark.parametrize("url", ["api/v1/requests/", "api/v1/usage/", "v1/organizations/users"])
def test_too_many_parameters_get_an_error_that_says_so(send, url):
    response = send("admin_key", "GET", url, f"?{MANY}")

    assert response.status_code == 400
    assert "has more than 1000 parameters" in response.json()["error"]["message"]


LISTS = [url for url in READS if url in REST or (url.count("/") <= 3 and parameters_of(url))]


@pytest.mark.slow
@pytest.mark.parametrize("url", LISTS)
def test_no_value_of_a_parameter_makes_the_server_fail(send, url):
    names = parameters_of(url)
    queries = {
        kind: "&".join(f"{name}={value}" for name in names) for kind, value in VALUES.items()
    }

    found = {
        kind: send("root", "GET", url, f"?{query}").status_code for kind, query in queries.items()
    }

    assert {kind: status for kind, status in found.items() if status >= 500} == {}


@pytest.mark.slow
@pytest.mark.parametrize("url", [url for url in READS if "<" in url])
def test_no_part_of_a_path_makes_the_server_fail(send, url):
    found = {}
    for kind, value in PATH_VALUES.items():
        hostile = re.sub("<(str|path|slug):[^>]+>", value, url)
        found[kind] = send("root", "GET", hostile).status_code

    assert {kind: status for kind, status in found.items() if status >= 500} == {}


@pytest.mark.slow
@pytest.mark.parametrize("url", REST)
def test_no_body_makes_the_server_fail(send, url):
    found = {}
    for method in ("POST", "PATCH", "PUT"):
        for kind, body in BODIES.items():
            response = send("admin_key", method, url, "", body=body)
            found[f"{method} {kind}"] = response.status_code

    assert {kind: status for kind, status in found.items() if status >= 500} == {}
