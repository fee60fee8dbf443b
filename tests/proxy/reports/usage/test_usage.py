"""GET /api/v1/usage/ on a small ledger."""

from datetime import UTC, datetime, timedelta

import pytest

from proxy.models import HashChainLink
from tests.proxy.admin import factories
from tests.proxy.ledger.amending import set_cost

pytestmark = pytest.mark.django_db
URL = "/api/v1/usage/"


@pytest.fixture
def admin_key():
    return factories.key("finance", scopes=["admin"])[1]


def get(client, key, url=URL, **query):
    return client.get(url, query, headers={"x-api-key": key})


def test_usage_by_day_and_model_is_the_default(client, admin_key):
    factories.price()
    factories.record(at=factories.NOON)
    factories.record(at=factories.NOON + timedelta(hours=1))
    factories.record(
        at=factories.NOON + timedelta(days=1), body=factories.request_body(model="claude-haiku-5")
    )

    answer = get(client, admin_key, **{"from": "2026-11-20", "to": "2026-11-22"}).json()

    assert [(row["date"], row["model"], row["requests"]) for row in answer["data"]] == [
        ("2026-11-20", "claude-opus-5-5", 2),
        ("2026-11-21", "claude-haiku-5", 1),
    ]
    first = answer["data"][0]
    assert (first["input_tokens"], first["cache_read_input_tokens"], first["output_tokens"]) == (
        200,
        2000,
        100,
    )
    assert first["cost_usd"] == "0.0015"  # 2 x (100 x 1.25 + 1000 x 0.125 + 50 x 10) millionths
    assert answer["totals"]["requests"] == 3
    assert not answer["has_more"]


def test_reported_estimated_and_missing_tokens_are_separate(client, admin_key):
    factories.record()
    factories.record(closing={"usage": {"input": 7, "output": 3, "source": "estimated"}})
    factories.record(closing={"usage": {}, "outcome": "upstream_error", "status": 502})

    (row,) = get(client, admin_key, **{"from": "2026-11-20", "to": "2026-11-21"}).json()["data"]

    assert row["input_tokens"] == 107
    assert row["input_tokens_reported"] == 100
    assert row["input_tokens_estimated"] == 7
    assert row["input_missing_requests"] == 1
    assert row["errors"] == 1


def test_an_unknown_cost_is_null_and_not_zero(client, admin_key):
    factories.record()

    (row,) = get(client, admin_key, **{"from": "2026-11-20", "to": "2026-11-21"}).json()["data"]

    assert row["cost_usd"] is None
    assert row["unpriced_requests"] == 1
    assert row["cost_is_floor"] is True


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Asia/Kolkata", "2026-11-21"),  # +05:30
        ("Asia/Kathmandu", "2026-11-21"),  # +05:45
        ("America/St_Johns", "2026-11-20"),  # -03:30
        ("UTC", "2026-11-20"),
    ],
)
def test_days_are_days_of_the_time_zone(client, admin_key, zone, day):
    factories.record(at=datetime(2026, 11, 20, 18, 31, tzinfo=UTC))

    answer = get(client, admin_key, tz=zone, **{"from": "2026-11-20", "to": "2026-11-23"}).json()

    assert [row["date"] for row in answer["data"]] == [day]
    assert answer["tz"] == zone


def test_a_day_with_25_hours_is_one_bucket(client, admin_key):
    start = datetime(2026, 10, 24, 22, 0, tzinfo=UTC)  # midnight of the 25th in Berlin
    for hour in range(26):
        factories.record(at=start + timedelta(hours=hour))

    answer = get(
        client, admin_key, tz="Europe/Berlin", **{"from": "2026-10-25", "to": "2026-10-27"}
    ).json()

    assert [(row["date"], row["requests"]) for row in answer["data"]] == [
        ("2026-10-25", 25),
        ("2026-10-26", 1),
    ]


@pytest.mark.parametrize("zone", ["UTC", "Australia/Lord_Howe", "Asia/Kathmandu"])
def test_rows_add_up_to_the_totals(client, admin_key, zone):
    ci, _ = factories.key("ci")
    for hour in range(0, 72, 7):
        factories.record(at=factories.NOON + timedelta(hours=hour, minutes=11 * hour), key=ci)
    span = {"from": "2026-11-20T00:00:00Z", "to": "2026-11-27T00:00:00Z", "tz": zone}

    answers = [
        get(client, admin_key, bucket=bucket, group_by=groups, **span).json()
        for bucket in ("15m", "1h", "1d", "1w", "1mo", "all")
        for groups in ("", "model", "team,key", "status,stop_reason")
    ]

    for answer in answers:
        assert sum(row["requests"] for row in answer["data"]) == 11
        assert sum(row["input_tokens"] for row in answer["data"]) == 1100
        assert answer["totals"]["input_tokens"] == 1100


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"tz": "Mars/Olympus"}, "tz: 'Mars/Olympus' is not an IANA time zone"),
        ({"tz": "../../etc/passwd"}, "tz: "),
        ({"bucket": "3d"}, 'bucket: "3d" is not a valid choice; known: 15m, 1h, 1d, 1w, 1mo, all'),
        ({"group_by": "shoe"}, "group_by: "),
        ({"from": "yesterday"}, "from: 'yesterday' is neither a date nor"),
        ({"from": "1969-12-31"}, "from: '1969-12-31' is not between the years 1970 and 9990"),
        ({"from": "2026-11-20", "to": "2026-11-20"}, "to: must be later than from: 2026-11-20T"),
        ({"from": "2026-01-01", "to": "2026-11-20", "bucket": "15m"}, "bucket: more than"),
        ({"limit": "0"}, "limit: "),
        ({"limit": "many"}, "limit: 'many' is not a whole number"),
        ({"status": "2xx"}, "status: '2xx' is not a whole number"),
        ({"page": "nonsense"}, "page: expected the next_page"),
        ({"modle": "x"}, "modle: unknown parameter; did you mean 'model'? Known here: "),
        ({"zork": "x"}, "zork: unknown parameter; known here: "),
        ({"outcome": "fine"}, "outcome: "),
        ({"format": "xml"}, "format: "),
        ({"from": "9999-12-31", "to": "9999-12-31T23:59:59Z"}, "to: "),
    ],
)
def test_an_invalid_parameter_is_named(client, admin_key, query, message):
    answer = get(client, admin_key, **query)

    assert answer.status_code == 400
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert message in body["error"]["message"]
    assert body["request_id"] == answer["request-id"]


def test_pages_are_contiguous(client, admin_key):
    for day in range(5):
        factories.record(at=factories.NOON - timedelta(days=day))
    query = {"from": "2026-11-10", "to": "2026-11-21", "limit": 2}

    seen, page = [], ""
    for _ in range(3):
        answer = get(client, admin_key, page=page, **query).json()
        seen += [row["date"] for row in answer["data"]]
        page = answer["next_page"]

    assert seen == [f"2026-11-{day}" for day in range(16, 21)]
    assert page is None


def test_an_unchanged_report_is_304(client, admin_key):
    factories.record()
    query = {"from": "2026-11-20", "to": "2026-11-21"}
    first = get(client, admin_key, **query)

    again = client.get(URL, query, headers={"x-api-key": admin_key, "if-none-match": first["ETag"]})

    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_csv_has_a_header_and_one_line_per_row(client, admin_key):
    factories.record(body=factories.request_body(model='=HYPERLINK("http://evil")'))
    query = {"from": "2026-11-20", "to": "2026-11-21", "format": "csv"}

    answer = get(client, admin_key, **query)
    head, line = answer.content.decode().splitlines()

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert head.startswith("starting_at,ending_at,date,model,requests,")
    assert ",\"'=HYPERLINK(" in line


def test_a_month_is_one_call_and_one_file(client, admin_key):
    """A request at 2026-10-31T23:30Z is in November in Berlin."""
    for at in ("2026-10-01T00:00", "2026-10-31T22:30", "2026-10-31T23:30"):
        factories.record(at=datetime.fromisoformat(f"{at}+00:00"))
    query = {"month": "2026-10", "tz": "Europe/Berlin", "group_by": "team,model"}

    answer = get(client, admin_key, **query)
    file = get(client, admin_key, **query, format="csv")

    assert answer.json()["from"] == "2026-10-01T00:00:00+02:00"
    assert answer.json()["to"] == "2026-11-01T00:00:00+01:00"
    assert answer.json()["totals"]["requests"] == 2
    assert file["Content-Disposition"] == 'attachment; filename="usage-2026-10.csv"'
    lines = file.content.decode().splitlines()
    assert [line.split(",")[2:4] for line in lines[1:]] == [
        ["2026-10-01", "platform"],
        ["2026-10-31", "platform"],
    ]


@pytest.mark.parametrize(("name", "months"), [("this", 0), ("last", 1)])
def test_a_month_can_be_relative(client, admin_key, name, months):
    first = datetime.now(UTC).date().replace(day=1)
    for _ in range(months):
        first = (first - timedelta(days=1)).replace(day=1)

    assert get(client, admin_key, month=name).json()["from"] == f"{first}T00:00:00Z"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"month": "2026-13"}, "is not a month such as 2026-10"),
        ({"month": "1-1"}, "is not a month such as 2026-10"),
        ({"month": "2026-10", "from": "2026-10-01"}, "use either month, or from and to"),
    ],
)
def test_an_invalid_month_is_refused(client, admin_key, query, message):
    response = get(client, admin_key, **query)

    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


@pytest.fixture
def late_rows():
    """Record three requests of 20 November: one on that day, one ten days later, one repriced then.

    A link of the hash chain has the day on which the row was recorded.
    """
    factories.price()
    early, late, changed = (factories.record() for _ in range(3))
    HashChainLink.objects.filter(exchange_id__in=(early.pk, changed.pk)).update(day="2026-11-20")
    HashChainLink.objects.filter(exchange_id=late.pk).update(day="2026-11-30")
    set_cost(changed.pk, 7, now=datetime(2026, 11, 30, tzinfo=UTC))


@pytest.mark.usefixtures("late_rows")
@pytest.mark.parametrize(
    ("as_of", "expected"),
    [
        ("2026-11-19", (0, "0", 0)),
        ("2026-11-20", (2, "0.00075", 1)),
        ("2026-11-29", (2, "0.00075", 1)),
        ("2026-11-30", (3, "0.001500007", 0)),
    ],
)
def test_a_report_as_of_a_day_has_what_was_known_then(client, admin_key, as_of, expected):
    query = {"from": "2026-11-20", "to": "2026-11-21", "group_by": "team"}

    answer = get(client, admin_key, **query, as_of=as_of).json()

    totals, (requests, _, unpriced) = answer["totals"], expected
    assert (totals["requests"], totals["cost_usd"], totals["unpriced_requests"]) == expected
    assert totals["cost_is_floor"] == bool(unpriced)
    assert [row["requests"] for row in answer["data"]] == ([requests] if requests else [])
    if as_of == "2026-11-30":  # nothing was recorded later: the same as without as_of
        now_known = get(client, admin_key, **query).json()
        assert (answer["data"], totals) == (now_known["data"], now_known["totals"])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"as_of": "yesterday"}, "as_of"),
        ({"as_of": "2026-11-20", "bucket": "1h"}, "use one of 1d, 1w, 1mo, all"),
        ({"as_of": "2026-11-20", "from": "2026-01-01"}, "at most 93 days"),
    ],
)
def test_as_of_is_limited(client, admin_key, query, message):
    response = get(client, admin_key, **query)

    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
