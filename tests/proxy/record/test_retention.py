"""Bodies go when their team's time is up; what others still name stays; rows and sums stay."""

from datetime import UTC, datetime, timedelta

import pytest

from proxy.models import Exchange, Part, QuarterUsage, Team, Transcript
from proxy.record import retention, transcripts
from proxy.record.posting import Story, post
from proxy.record.sizes import sizes

from .making import NOON, answer, body, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
START = datetime.fromtimestamp(NOON, UTC)


@pytest.fixture
def ledger() -> None:
    Team.objects.create(name="short", retention_days=2)
    Team.objects.create(name="long", retention_days=60)
    shared = body("shared by both", system="the same system prompt")
    own = body("only said by the short team", system="the same system prompt")
    stories = [
        Story(opening(1, team="short", body=shared), [], closing(1, answer=None)),
        Story(opening(2, team="short", body=own), [], closing(2, answer=answer("of two"))),
        Story(opening(3, team="long", body=shared), [], closing(3, answer=None)),
    ]
    post(stories, START)


def prune(now: datetime) -> tuple[int, int]:
    return sum(retention.prune_transcripts(now, 1)), sum(retention.prune_parts(now, 2))


def test_each_team_has_its_own_time(ledger) -> None:
    parts = Part.objects.count()

    assert prune(START + timedelta(days=1)) == (0, 0)
    deleted, dropped = prune(START + timedelta(days=3))

    assert deleted == 2
    assert dropped == 2  # what only the short team said, and what was answered
    assert Part.objects.count() == parts - 2
    stored = transcripts.read(exchange_id(3))
    assert stored is not None
    assert stored.request["messages"] == [{"role": "user", "content": "shared by both"}]
    assert Exchange.objects.count() == 3
    assert sum(QuarterUsage.objects.values_list("requests", flat=True)) == 3


def test_nothing_is_left_of_bodies_when_all_are_past_their_time(ledger) -> None:
    prune(START + timedelta(days=100))

    assert not Transcript.objects.exists()
    assert not Part.objects.exists()


def test_a_part_named_again_a_moment_ago_is_left_alone(ledger) -> None:
    Transcript.objects.all().delete()
    late = START + timedelta(days=3)
    Part.objects.filter(pk=Part.objects.order_by("pk").first().pk).update(used=late)

    list(retention.prune_parts(late + timedelta(hours=1)))

    assert Part.objects.count() == 1


def test_naming_a_part_again_freshens_it(ledger) -> None:
    later = START + timedelta(days=1)

    post([Story(opening(4, team="long", body=body("shared by both")), [])], later)

    assert Part.objects.filter(used__gte=later - timedelta(hours=1)).exists()


def test_every_table_has_a_size(ledger) -> None:
    found = {size.table: size for size in sizes()}

    assert found["proxy_exchange"].rows == 3
    assert found.keys() >= {"proxy_drift", "django_session", "django_admin_log", "proxy_export"}
    assert all(size.bytes > 0 for size in found.values())
