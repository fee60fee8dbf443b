"""Names as they first appear: read from records, counted once a request, bounded."""

import pytest

from proxy.models import Drift
from proxy.record import drift, posting
from proxy.record.drift import MOST_NAMES, MOST_OF_ONE, OTHERS, Radar, sightings

from .making import body, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
ODD = body(
    "Hello",
    {"role": "developer", "content": [{"type": "hologram"}, {"type": "text", "text": "x"}]},
    brand_new_field=1,
)


@pytest.fixture(autouse=True)
def radar(monkeypatch) -> Radar:
    made = Radar()
    monkeypatch.setattr(drift, "radar", made)
    return made


def seen(kind: str) -> dict[str, tuple[bool | None, int]]:
    return {row.name: (row.known, row.requests) for row in Drift.objects.filter(kind=kind)}


def post(number: int, **fields) -> None:
    posting.post([posting.Story(opening(number, **fields), [], closing(number))])


def test_what_is_new_is_there_with_its_first_request(team):
    post(1, betas=["context-1m-2025-08-07"], client_name="claude-cli", client_version="2.1.329")
    post(2, body=ODD)

    assert seen("beta") == {"context-1m-2025-08-07": (None, 1)}
    assert seen("client") == {"claude-cli 2.1.329": (None, 1)}
    assert seen("field")["brand_new_field"] == (False, 1)
    assert seen("field")["messages"][0] is True
    assert seen("block")["hologram"] == (False, 1)
    assert seen("role")["developer"] == (False, 1)
    assert Drift.objects.get(name="hologram").first_request == exchange_id(2)


def test_the_names_in_a_refused_body_were_counted_by_who_refused_it():
    betas = ["context-1m-2025-08-07"]

    assert {*sightings(opening(1, body=ODD, betas=betas, faulty=True))} == {("beta", betas[0])}
    assert ("field", "brand_new_field") in {*sightings(opening(1, body=ODD))}


def test_an_unknown_event_of_an_upstream_is_drift_as_well(team):
    posting.post(
        [posting.Story(opening(1), [], closing(1, unknown_events={"response.sparkle": 7}))]
    )

    assert seen("event") == {"response.sparkle": (False, 1)}


def test_an_exchange_that_is_posted_twice_is_counted_once(team, radar):
    story = posting.Story(opening(1, betas=["b"]), [], closing(1))
    posting.post([posting.Story(story.opening, [])])  # still running
    posting.post([story])
    posting.post([story])
    radar._at = float("-inf")
    post(2, betas=["c"])

    assert seen("beta") == {"b": (None, 1), "c": (None, 1)}


def test_counts_of_known_names_are_written_together(team, radar):
    for number in range(1, 6):
        post(number, betas=["b"])
    before = seen("beta")["b"][1]
    radar._at = float("-inf")  # ten seconds later
    post(6, betas=["b"])

    assert before == 1
    assert seen("beta")["b"] == (None, 6)


def test_a_team_that_keeps_no_words_shows_no_fields(team):
    post(1, body=None, betas=["b"])

    assert seen("field") == {}
    assert seen("beta") == {"b": (None, 1)}


def test_names_that_clients_choose_do_not_fill_the_table(team):
    for number in range(3):
        names = [f"b-{number}-{n}" + "x" * 300 for n in range(MOST_NAMES // 2)]
        post(number + 1, betas=names)

    rows = Drift.objects.filter(kind="beta")
    assert rows.count() == MOST_NAMES + 1
    assert seen("beta")[OTHERS] == (None, MOST_NAMES // 2)
    assert max(len(row.name) for row in rows) == 100


def test_names_that_clients_choose_do_not_fill_the_memory(team, radar):
    for number in range(4):
        post(number + 1, betas=[f"b-{number}-{n}" for n in range(MOST_NAMES)])

    assert sum(kind == "beta" for kind, _ in radar._written) == MOST_NAMES + 1
    waiting = radar._counts["beta", OTHERS]
    assert seen("beta")[OTHERS][1] + waiting == 3 * MOST_NAMES


def test_one_request_brings_few_names(team):
    fields = {f"field_{n}": n for n in range(10 * MOST_OF_ONE)}
    blocks = [{"type": f"kind_{n}"} for n in range(10 * MOST_OF_ONE)]
    roles = [{"role": f"role_{n}", "content": blocks} for n in range(10 * MOST_OF_ONE)]
    post(1, body=body("Hello", *roles, **fields))

    assert len(seen("field")) == len(seen("block")) == len(seen("role")) == MOST_OF_ONE


@pytest.mark.parametrize("odd", [b"", b"[]", b'{"messages": 3}', b"\xff", b'{"messages": [{}]}'])
def test_a_body_that_cannot_be_read_costs_nothing_else(odd):
    assert all(kind for kind, _ in sightings(opening(1, body=odd)))


def test_the_ledger_does_not_suffer_from_the_radar(team, radar, monkeypatch, caplog):
    monkeypatch.setattr(radar, "_write", lambda _: 1 / 0)

    post(1)

    assert "could not be read" in caplog.text
