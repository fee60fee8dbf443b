"""Compare the response to each role, URL and method with a table; every URL has a row (T09, T10).

Each request goes over a socket and through the router, as a client's does.
``access_matrix.txt`` is the table of the roles, ``scope_matrix.txt`` of keys with a single scope.
After an intended change, remove the rows, generate them again and review the difference:
``BRIDGE_WRITE_MATRIX=1 pytest -n0 -m "slow or not slow" tests/repo/access -k "matches_the_table or accepts_keys_only"``.
"""

import pytest

from proxy.permissions.roles import AUDITOR, MEMBER
from tests import lanes

from .access_requests import KEYS, ROLES, SCOPES, word_of
from .access_tables import (
    DJANGO,
    GATEWAY,
    METHODS,
    OPEN,
    REST,
    SCOPE_TABLE,
    WRITING,
    compare,
    rows,
)


def test_each_url_has_a_row_for_each_method():
    table = rows()

    assert {*DJANGO, *GATEWAY} - set(table) == set()
    assert {url for url in table if tuple(table[url]) != METHODS} == set()
    assert all(len(words) == len(ROLES) for row in table.values() for words in row.values())


def test_each_url_of_the_api_has_a_row_for_each_scope():
    table = rows(SCOPE_TABLE)

    assert set(table) == {*REST, *GATEWAY}
    assert {url for url in table if tuple(table[url]) != METHODS} == set()
    assert all(len(words) == len(SCOPES) for row in table.values() for words in row.values())


@pytest.mark.parametrize(
    ("scope", "prefixes"),
    [
        ("messages", ()),
        ("reports", ()),
        ("reports:read", ()),
        ("transcripts:read", ()),
        ("keys:write", ("api/v1/keys/",)),
        ("config:write", tuple(
            f"api/v1/{one}/" for one in (
                "teams", "models", "upstreams", "prices", "budgets", "pauses", "deliveries", "reports",
            )
        )),
    ],
)  # fmt: skip
def test_a_scope_writes_only_what_its_name_says(scope, prefixes):
    """A 400 is the response to an empty body by a caller who may write."""
    place = SCOPES.index(scope)
    writable = {
        url
        for url, row in rows(SCOPE_TABLE).items()
        if url in REST
        for method in ("POST", "DELETE")
        if row[method][place] not in REFUSED
    }

    assert {url for url in writable if not url.startswith(prefixes)} <= {"api/v1/exports/"}


def test_anonymous_clients_reach_only_public_urls():
    reachable = {
        url for url, row in rows().items() if any(words[0] == "ok" for words in row.values())
    }

    assert reachable <= OPEN


@pytest.mark.parametrize("role", [MEMBER, AUDITOR, "staff"])
def test_read_only_roles_cannot_write(role):
    place = ROLES.index(role)
    endings = ("/add/", "/change/", "/delete/", "/rotate/", "/revoke/", "<id>/password/", "/test/",
             "/purge/", "/invite/", "/send/")  # fmt: skip
    own = {"admin/proxy/apikey/<int:key_id>/revoke/"} if role == MEMBER else set()
    writable = {
        url
        for url, row in rows().items()
        if url.endswith(endings) and row["POST"][place] not in REFUSED
    }

    assert writable == own


REFUSED = {"403", "404", "405"}


@pytest.fixture
def send_as(send):
    """Return a function that sends a request as a role, and returns one word for the response."""
    return lambda *request: word_of(send(*request))


def senders(url):
    """Return the roles that send each method to a URL: in the slow lane each role each method.

    In the fast lane, an anonymous client sends the first write; test_write_matrix sends the writes of
    the other roles. A page is requested with one of the keys, because no page reads a key.
    """
    if lanes.is_slow():
        return dict.fromkeys(METHODS, ROLES)
    is_page = not url.startswith(("api/", "v1/"))
    left_out = KEYS[1:] if is_page else ()
    return {"GET": [role for role in ROLES if role not in left_out], "POST": ROLES[:1]}


def in_lane(url):
    """Test the paths of reports without their last slash, which have the same views, less often."""
    same_view = url.startswith("api/v1/") and f"{url}/" in DJANGO
    return pytest.param(url, marks=pytest.mark.slow) if same_view else url


@pytest.mark.repeated
@pytest.mark.django_db
@pytest.mark.parametrize("url", [in_lane(url) for url in DJANGO])
def test_each_response_to_a_role_matches_the_table(send_as, url):
    if WRITING and url in rows():
        return
    found = {
        method: {role: send_as(role, method, url) for role in roles}
        for method, roles in senders(url).items()
    }

    compare(url, found, ROLES)


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("url", REST)
def test_each_response_to_a_scope_matches_the_table(send_as, url):
    if WRITING and url in rows(SCOPE_TABLE):
        return
    found = {method: {one: send_as(one, method, url) for one in SCOPES} for method in METHODS}

    compare(url, found, SCOPES, SCOPE_TABLE)


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("url", [url for url in DJANGO if not url.startswith(("api/", "v1/"))])
def test_a_key_of_any_scope_opens_no_page(send_as, url):
    assert {send_as(scope, "GET", url) for scope in SCOPES} == {rows()[url]["GET"][0]}
