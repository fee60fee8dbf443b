"""The page of saved reports: lines of parameters, and links that return the rows."""

import re

import pytest

from proxy.models import AuditEntry, SavedReport
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
LIST = "/admin/proxy/savedreport/"
FORM = {"name": "monthly", "report": "usage", "team": "",
        "query": "month = 2026-11\ngroup_by = team,model"}  # fmt: skip


def test_a_report_is_saved_and_downloaded(root):
    factories.record()

    saved = root.post(f"{LIST}add/", FORM)
    assert saved.status_code == 302, saved.content.decode()
    report = SavedReport.objects.get()
    assert (str(report.user), report.query) == (
        "root", {"month": "2026-11", "group_by": "team,model"},
    )  # fmt: skip
    page = root.get(LIST).content.decode()
    (csv_url,) = re.findall(r'href="(/api/v1/reports/[^"]+csv)"', page)
    file = root.get(csv_url)

    assert "month=2026-11" in page
    assert b"".join(file.streaming_content).count(b"platform") == 1
    shown = root.get(f"{LIST}{report.pk}/change/").content.decode()
    assert "group_by = team,model" in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "mont = last"}, "did you mean &#x27;month&#x27;?"),
        ({"query": "month"}, "expected name = value"),
        ({"report": "salaries"}, "Select a valid choice"),
    ],
)
def test_an_invalid_report_is_refused(root, changes, message):
    page = root.post(f"{LIST}add/", {**FORM, **changes}).content.decode()

    assert message in page
    assert not SavedReport.objects.exists()


def test_a_report_of_a_team_has_no_user(root):
    team = factories.team("platform")

    root.post(f"{LIST}add/", {**FORM, "team": team.pk})

    report = SavedReport.objects.get()
    assert (report.user, report.team) == (None, team)


@pytest.mark.parametrize("owner", ["user", "team"])
def test_the_reports_of_an_owner_are_deleted_with_the_owner(client, owner) -> None:
    owners = {"user": factories.staff("ben"), "team": factories.team("mobile")}
    SavedReport.objects.create(name="daily", report="usage", **{owner: owners[owner]})
    client.force_login(factories.superuser())
    url = {"user": "auth/user", "team": "proxy/team"}[owner]

    answer = client.post(f"/admin/{url}/{owners[owner].pk}/delete/", {"post": "yes"})

    assert answer.status_code == 302, answer.content[:500]
    assert not SavedReport.objects.exists()
    deleted = AuditEntry.objects.filter(action="delete").values_list("model", flat=True)
    assert "saved report" in deleted
