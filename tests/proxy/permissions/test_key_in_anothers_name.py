"""A key that was made in another person's name reads that person's words only with a reason."""

import pytest
from django.utils.timezone import now

from proxy.models import AuditEntry
from proxy.permissions.readings import HEADER
from proxy.permissions.roles import MEMBER
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


def test_it_needs_a_reason_and_the_person_sees_who_read(settings):
    settings.READING_NEEDS_REASON = True
    ben = factories.staff("ben", groups=(MEMBER,))
    sent = factories.record(
        at=now(), key=factories.key("laptop", user=ben)[0], opening={"user": "ben"}
    )
    secret = factories.key("spy", user=ben, scopes=["transcripts:read"])[1]
    client = ServedClient()
    url = f"/api/v1/requests/{sent.pk}/transcript/"

    without = client.get(url, headers={"x-api-key": secret})
    search = client.get("/api/v1/search/?q=files&user=ben", headers={"x-api-key": secret})
    given = client.get(url, headers={"x-api-key": secret, HEADER: "ticket 4711"})
    client.force_login(ben)
    page = client.get("/admin/my-readings/").content.decode()

    assert without.status_code == 403
    assert search.status_code == 403
    assert given.status_code == 200
    assert AuditEntry.objects.get(action="read").reason == "ticket 4711"
    assert "platform/spy" in page
    assert "ticket 4711" in page
