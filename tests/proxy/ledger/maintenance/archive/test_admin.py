"""The pages of the admin name the archived months in their time, and the command for them."""

import pytest
from django.core.management import call_command

from proxy.admin.requests.exchange_admin import ExchangeAdmin
from proxy.models import Exchange
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
LIST = "/admin/proxy/exchange/"
HINT = "Requests of 2026-06 are archived; manage.py restoremonth 2026-06 brings them back."


@pytest.fixture
def ids(client, ledger, archive):
    client.force_login(factories.superuser())
    ids = [row.pk for row in ledger]
    archive("--before", "2026-07", "--remove")
    assert Exchange.objects.count() == 5
    return ids


def has_hint(client, path, status=200):
    page = client.get(path)
    assert page.status_code == status
    return HINT in page.content.decode()


def test_the_list_of_requests_says_so_where_it_reaches_the_month(client, ids, monkeypatch):
    assert has_hint(client, LIST)
    assert has_hint(client, f"{LIST}?until=2026-06-30T00:00")
    assert has_hint(client, f"{LIST}?q={ids[0]}")
    assert not has_hint(client, f"{LIST}?q={ids[-1]}")
    assert not has_hint(client, f"{LIST}?since=2026-07-01T12:00")
    monkeypatch.setattr(ExchangeAdmin, "list_per_page", 3)
    assert not has_hint(client, LIST)  # the page ends in July
    assert has_hint(client, LIST + client.get(LIST).context["cl"].older_url)


def test_sessions_say_so(client, ids):
    assert has_hint(client, "/admin/sessions/?day=2026-06-29")
    assert not has_hint(client, "/admin/sessions/?day=2026-07-02")
    assert has_hint(client, "/admin/sessions/one/?id=session-1")  # with requests on both sides
    assert has_hint(client, "/admin/sessions/one/?id=session-0", 404)


def test_the_page_of_an_archived_request_names_the_command(client, ids):
    assert has_hint(client, f"{LIST}{ids[0]}/change/", 404)
    assert not has_hint(client, f"{LIST}req_{'0' * 26}/change/", 404)
    assert client.get(f"{LIST}{ids[-1]}/change/", {"tab": "record"}).status_code == 200


def test_a_restored_month_is_shown_as_before(client, ids):
    call_command("restoremonth", "2026-06", verbosity=0)

    page = client.get(LIST)

    assert [row.pk for row in page.context["cl"].result_list] == ids[::-1]
    assert not has_hint(client, LIST)
    assert not has_hint(client, f"{LIST}{ids[0]}/change/")
