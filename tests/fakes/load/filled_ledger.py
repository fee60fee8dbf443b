"""Fill a ledger with requests as the drainer does: rows, transcripts, sums, chain, search index.

Run as a program, with the data directory and the settings in the environment; see ``fill_ledger``.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from tests.fakes.forked_python import python_with_libraries

BATCH = 200
TURNS = 5  # of each conversation
TEAMS = ("e2e", "research")
SPAN_S = 6 * 86_400.0  # from the first to the last request


def fill_ledger(requests: int, environment: Mapping[str, str], days_before: int = 0) -> None:
    """Write this number of requests to the ledger of a stopped gateway.

    ``days_before``: how long before ``NOON`` the first request was.
    """
    process = python_with_libraries().start(
        *("-m", __name__, str(requests), str(days_before)),
        environment={"PATH": os.environ["PATH"], **environment},
        stdout=2,
        stderr=2,
    )
    assert process.wait(600) == 0


def records(requests: int, days_before: int) -> Iterator[Any]:
    """Yield the records of each request: conversations in two teams, some with errors or open."""
    from proxy.ledger.posting.ledger_writer import ExchangeRecords
    from tests.proxy.ledger.factories import NOON, answer, body, closing, opening

    for number in range(1, requests + 1):
        conversation, turn = divmod(number, TURNS)
        topic = f"topic{conversation}x"  # a word that is in no other conversation
        history = [f"Question {each} about {topic}." for each in range(turn + 1)]
        created = NOON - days_before * 86_400 + number * SPAN_S / requests
        first = opening(
            number,
            created=created,
            team=TEAMS[conversation % 2],
            user=f"user-{conversation % 7}",
            session_id=f"session-{conversation}",
            body=body(*history),
        )
        if number % 50 == 49:
            yield ExchangeRecords(first, [])
            continue
        fields: dict[str, Any] = {"finished": created + 2.5, "answer": answer(f"Result {number}.")}
        if number % 20 == 19:
            fields |= {"outcome": "upstream_error", "status": 502, "answer": None, "usage": {}}
        yield ExchangeRecords(first, [], closing(number, **fields))


def main(requests: int, days_before: int) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "bridge_project.settings"
    import django

    django.setup()
    from proxy.ledger.posting.ledger_writer import write_to_database
    from proxy.models import Team

    for name in TEAMS:
        Team.objects.create(name=name, ledger_id=name)
    found = records(requests, days_before)
    while batch := list(islice(found, BATCH)):
        write_to_database(batch)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
