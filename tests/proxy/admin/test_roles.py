"""Which pages each role may open: one table for the pages with requests and their texts."""

import pytest

from tests.proxy.admin import factories
from tests.proxy.admin.session_factories import SESSION

pytestmark = pytest.mark.django_db

READS, TEXTS = "view_exchange", "view_transcript"
ROLES = {
    "without permissions": ((), ()),
    "of another team": ((READS, TEXTS), ("team:research",)),
    "without transcripts": ((READS,), ("team:platform",)),
    "without raw bodies": ((READS, TEXTS), ("team:platform",)),
}
PAGES = {
    "proxy/exchange/{pk}/change/": (403, 404, 200, 200),
    "proxy/exchange/{pk}/change/?tab=request": (403, 404, 403, 403),
    "proxy/exchange/{pk}/change/?tab=replay": (403, 404, 403, 403),
    "proxy/exchange/{pk}/change/?tab=sides": (403, 404, 403, 403),
    "proxy/exchange/{pk}/change/?tab=record": (403, 404, 200, 200),
    "proxy/exchange/{pk}/part/?path=messages": (403, 404, 403, 200),
    "proxy/exchange/{pk}/media/?path=messages.0": (403, 404, 403, 404),  # it is no image
    "proxy/exchange/{pk}/body/request/": (403, 404, 403, 403),
    "proxy/exchange/{pk}/body/transcript/": (403, 404, 403, 403),
    "proxy/exchange/{pk}/body/session/": (403, 404, 403, 403),
    "proxy/exchange/{pk}/body/sent/": (403, 404, 403, 403),
    "proxy/exchange/": (403, 200, 200, 200),
    "proxy/exchange/export.csv": (403, 200, 200, 200),
    "sessions/": (403, 200, 200, 200),
    "sessions/one/?id={session}": (403, 404, 200, 200),
    "sessions/one/?id={session}&tab=words": (403, 404, 200, 200),
    "sessions/export/?id={session}": (403, 403, 403, 403),
    "search/texts/?q=word": (403, 200, 403, 200),
    "reading-reason/?kind=request&id={pk}": (403, 200, 403, 200),
    "live/": (403, 200, 200, 200),
    "live/rows/": (403, 200, 200, 200),
    "comparison/": (403, 200, 200, 200),
    "outcomes/": (403, 200, 200, 200),
    "stop-reasons/": (403, 200, 200, 200),
    "my-readings/": (403, 200, 200, 200),
    "storage/": (403, 403, 403, 403),
    "people/invite/": (403, 403, 403, 403),
}
POSTS = {
    "live/{pk}/stop/": (403, 404, 302, 302),  # it has ended
    "live/stop/": (403, 403, 403, 403),
    "storage/purge/": (403, 403, 403, 403),
}
"""Path -> the status for each of the roles. They are 403 where a user lacks a permission, and 404
where the user may not know of the request."""


@pytest.mark.parametrize("role", ROLES)
def test_each_role_gets_each_page_or_its_refusal(client, rows, role):
    permissions, groups = ROLES[role]
    client.force_login(factories.staff("eve", *permissions, groups=groups))
    column = list(ROLES).index(role)

    for send, table in ((client.get, PAGES), (client.post, POSTS)):
        found = {
            path: send("/admin/" + path.format(pk=rows[0].pk, session=SESSION)).status_code
            for path in table
        }
        assert found == {path: statuses[column] for path, statuses in table.items()}
