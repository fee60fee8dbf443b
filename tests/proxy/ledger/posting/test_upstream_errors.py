"""The first error of a class at an upstream has an event; further ones within a day have none."""

import json
from datetime import UTC, datetime

import pytest

from proxy.ledger.posting import ledger_writer
from proxy.ledger.posting.upstream_errors import MAX_CLASSES
from proxy.models import UpstreamErrorClass, Webhook, WebhookEvent
from tests.proxy.ledger.factories import NOON, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
DAY_S = 86_400


@pytest.fixture(autouse=True)
def webhook():
    Webhook(name="ops", url="https://hooks.example.com/x", secret={"env": "HOOK"}).save()


def post(number, *attempts, outcome="completed", **fields):
    attempts = [{"upstream": "openai", "model": "gpt-5.2", "error": "", "ms": 1.0, "status": 200,
                 **attempt} for attempt in attempts]  # fmt: skip
    records = ledger_writer.ExchangeRecords(
        opening(number), [], closing(number, outcome=outcome, attempts=attempts, **fields)
    )
    ledger_writer.write_to_database([records])


def errors():
    bodies = [json.loads(event.body) for event in WebhookEvent.objects.order_by("created")]
    return [(body["data"]["upstream"], body["data"]["error"]) for body in bodies]


def test_each_class_of_an_upstream_has_one_event_within_a_day():
    post(1, {"status": 529}, outcome="upstream_error", upstream_status=529)
    post(2, {"status": 529}, outcome="upstream_error", upstream_status=529)
    post(3, {"status": 429}, {"upstream": "vllm"}, upstream_status=200)  # another target answered
    post(4, {"status": None, "error": "ConnectTimeout"}, outcome="upstream_timeout")
    post(5, {}, outcome="upstream_error", detail="cut", upstream_status=200)

    assert errors() == [
        ("openai", "HTTP 529"),
        ("openai", "HTTP 429"),
        ("openai", "ConnectTimeout"),
        ("openai", "cut"),
    ]
    event = json.loads(WebhookEvent.objects.order_by("created").first().body)
    assert event["type"] == "upstream.error"
    assert event["data"]["request_id"] == exchange_id(1)


def test_a_class_is_new_again_after_a_day_without_it():
    failed = {"outcome": "upstream_error", "upstream_status": 500}
    post(1, {"status": 500}, **failed)
    post(DAY_S, {"status": 500}, **failed)  # not yet: the previous one is less than a day ago
    post(3 * DAY_S, {"status": 500}, **failed)

    assert errors() == [("openai", "HTTP 500")] * 2


def test_good_requests_and_errors_of_the_request_have_no_event():
    post(1, {})
    post(2, {"status": 400}, outcome="refused", upstream_status=400)

    assert errors() == []
    assert not UpstreamErrorClass.objects.exists()


def test_the_classes_of_an_upstream_are_limited():
    seen = datetime.fromtimestamp(NOON, UTC)
    UpstreamErrorClass.objects.bulk_create(
        UpstreamErrorClass(upstream="openai", error=f"Old{number}", last_seen=seen)
        for number in range(MAX_CLASSES - 2)
    )
    for number in range(4):
        post(number + 1, {"status": None, "error": f"Error{number}"}, outcome="upstream_error")

    assert [error for _, error in errors()] == ["Error0", "Error1"]
