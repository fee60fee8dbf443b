"""The page Stop reasons: its groups, columns, links, and what other users see."""

import pytest
from django.utils import timezone

from tests.proxy.admin import factories
from tests.proxy.reports.usage.test_stop_reasons import stopped

pytestmark = pytest.mark.django_db
URL = "/admin/stop-reasons/"


@pytest.fixture(autouse=True)
def requests():
    today = timezone.now().replace(hour=0, minute=1)
    ci, _ = factories.key("ci")
    stopped(ci, "tool_use", "Bash", user="ben", client_version="2.1.400", day=today)
    stopped(ci, "max_tokens", n=1, user="ben", day=today)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("model", ["claude-opus-5-5"]), ("tool", ["Bash", "(no tool)"]), ("user", ["ben"]),
        ("client_version", ["claude-cli 2.1.400", "claude-cli 2.1.329"]), ("team", ["platform"]),
    ],
)  # fmt: skip
def test_each_group_has_a_row_and_each_reason_a_column(root, by, names) -> None:
    page = root.get(URL, {"by": by})

    assert {row["name"] for row in page.context["rows"]} == set(names)
    assert page.context["columns"] == ["max_tokens", "tool_use"]
    assert "50 %" in page.content.decode() or len(names) == 2


@pytest.mark.parametrize("by", ["model", "client", "client_version", "team", "user"])
def test_a_share_leads_to_its_requests(root, by) -> None:
    row = root.get(URL, {"by": by}).context["rows"][0]
    links = [cell["url"] for cell in row["cells"] if cell]

    found = [root.get(url).context["cl"].result_list for url in (row["url"], *links)]

    assert [len(rows) for rows in found[1:]] == [1] * len(links)
    assert len(found[0]) == len(links)


def test_a_member_sees_own_requests_only_and_days_without_any_have_a_hint(client) -> None:
    client.force_login(factories.staff("cleo", groups=("member",)))
    page = client.get(URL).content.decode()

    assert "your own requests" in page
    assert "No finished requests on these days" in page
