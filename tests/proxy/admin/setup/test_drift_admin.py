"""The list of new names, and the form of upstream policies."""

import pytest
from django.urls import reverse
from django.utils.timezone import now

from proxy.models import Drift, Revision, UpstreamPolicy
from proxy.permissions.roles import AUDITOR, OWNER
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


def new_name(kind: str, name: str, **fields) -> Drift:
    return Drift.objects.create(kind=kind, name=name, first_seen=now(), last_seen=now(), **fields)


@pytest.fixture
def owner(client):
    client.force_login(factories.staff("ada", groups=(OWNER,)))
    return client


def test_new_names_are_listed_with_their_first_request_and_support(owner):
    exchange = factories.record()
    new_name("beta", "context-9m", first_request=exchange.pk)
    new_name("block", "<script>alert(1)</script>", known=False)

    page = owner.get(reverse("admin:proxy_drift_changelist")).content.decode()

    assert "context-9m" in page
    assert reverse("admin:proxy_exchange_change", args=[exchange.pk]) in page
    assert "not known" in page
    assert "<script>alert(1)" not in page
    assert f"{reverse('admin:proxy_upstreampolicy_add')}?kind=beta&amp;name=context-9m" in page


def test_the_lists_have_the_titles_of_the_sidebar_and_no_action_bar(owner):
    new_name("beta", "context-9m")
    UpstreamPolicy.objects.create(kind="beta", name="context-9m", action="drop")

    names = owner.get(reverse("admin:proxy_drift_changelist")).content.decode()
    policies = owner.get(reverse("admin:proxy_upstreampolicy_changelist")).content.decode()

    assert '<h1 class="mb-crumbs">Drift\n</h1>' in names
    assert "<title>Drift" in names
    assert 'id="changelist-actions"' not in policies


def test_a_policy_is_created_from_a_name_and_shown_beside_it(owner):
    new_name("beta", "context-9m")
    revision = Revision.objects.filter(pk=1).values_list("number", flat=True).first() or 0
    form = {"kind": "beta", "name": "context-*", "action": "drop", "upstream": "", "position": "0"}

    answer = owner.post(reverse("admin:proxy_upstreampolicy_add"), form)

    assert answer.status_code == 302
    assert UpstreamPolicy.objects.get().covers("context-9m")
    assert Revision.objects.get(pk=1).number > revision
    page = owner.get(reverse("admin:proxy_drift_changelist")).content.decode()
    assert "drop, with a note" in page


@pytest.mark.parametrize(
    ("kind", "name", "action"),
    [
        ("field", "messages", "drop"),
        ("block", "tool_result", "drop"),
        ("role", "user", "refuse"),
        ("client", "claude-cli *", "drop"),
    ],
)
def test_required_names_cannot_be_dropped(owner, kind, name, action):
    form = {"kind": kind, "name": name, "action": action, "upstream": "", "position": "0"}

    page = owner.post(reverse("admin:proxy_upstreampolicy_add"), form)

    assert page.status_code == 200
    assert not UpstreamPolicy.objects.exists()


@pytest.mark.parametrize("kind", ["field", "block", "role", "client"])
def test_each_kind_of_a_client_can_have_a_policy(owner, kind):
    new_name(kind, "brand new")

    page = owner.get(reverse("admin:proxy_drift_changelist")).content.decode()
    link = f"{reverse('admin:proxy_upstreampolicy_add')}?kind={kind}&amp;name=brand+new"
    assert link in page
    form = {"kind": kind, "name": "brand *", "action": "refuse", "upstream": "", "position": "0"}
    owner.post(reverse("admin:proxy_upstreampolicy_add"), form)

    page = owner.get(reverse("admin:proxy_drift_changelist")).content.decode()
    assert "reject the request" in page
    assert link not in page


def test_an_auditor_reads_but_cannot_change(client):
    client.force_login(factories.staff("eve", groups=(AUDITOR,)))
    new_name("beta", "context-9m")

    assert client.get(reverse("admin:proxy_drift_changelist")).status_code == 200
    assert client.get(reverse("admin:proxy_upstreampolicy_changelist")).status_code == 200
    assert client.get(reverse("admin:proxy_upstreampolicy_add")).status_code == 403


def test_names_cannot_be_added_or_deleted(client):
    client.force_login(factories.superuser())
    row = new_name("beta", "context-9m")

    assert client.get(reverse("admin:proxy_drift_add")).status_code == 403
    assert client.post(reverse("admin:proxy_drift_delete", args=[row.pk])).status_code == 403
