"""A row that a hand in the database made unreadable is left out, told, and stops nothing else.

The rows are written by SQL, past every form, while the gateway runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from proxy.gateway import configuration
from proxy.gateway.directory import directory, load_snapshot
from proxy.models import ApiKey, Budget, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.secrets import digest_of
from proxy.soundness import SEEN
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import add_route, add_upstream, message

SECRET = "sk-hidden-in-a-row"


def sql(text: str, *values: object) -> None:
    """As a hand does it: no constraint between tables, no signal; only the revision is raised."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA foreign_keys = OFF")
        cursor.execute(text, values)
        cursor.execute("PRAGMA foreign_keys = ON")
    Revision.rise()


class House:
    """A team of its own, with one key, one upstream and one route."""

    def __init__(self, scripted: ScriptedUpstream) -> None:
        self.team = Team.objects.create(name="odd")
        self.key, self.secret = ApiKey.issue(self.team, "k")
        self.upstream = add_upstream("odd", "chat", scripted.base_url)
        self.route = add_route("odd-*", self.upstream)
        self.target = RouteTarget.objects.get(route=self.route)
        self.price = Price.objects.create(model="odd-m", since="2026-01-01", input=1, output=1)
        self.budget = Budget.objects.create(team=self.team, usd=5)

    def damage(self, table: str, column: str, value: object) -> int:
        row = getattr(self, {"apikey": "key", "routetarget": "target"}.get(table, table))
        sql(f'UPDATE proxy_{table} SET "{column}" = %s WHERE id = %s', value, row.pk)  # noqa: S608
        return row.pk

    def remove(self) -> None:
        for table in ("budget", "price", "routetarget", "route", "upstream", "apikey", "team"):
            row = getattr(self, {"apikey": "key", "routetarget": "target"}.get(table, table))
            sql(f"DELETE FROM proxy_{table} WHERE id = %s", row.pk)  # noqa: S608


@pytest.fixture
def house(
    gateway: Browser, scripted: ScriptedUpstream, reload: Callable[[], None]
) -> Iterator[House]:
    scripted.on("odd-m", scripts.chat())
    made = House(scripted)
    reload()
    yield made
    made.remove()
    reload()


# table, column, what is written; the field that is told; whether the team's key still works
DAMAGE = {
    "limits of another kind": ("apikey", "limits", "[60]", "key", "limits", 401),
    "an unknown limit": ("apikey", "limits", '{"rmp": 60}', "key", "limits", 401),
    "a limit in words": ("apikey", "limits", f'{{"rpm": "{SECRET}"}}', "key", "limits", 401),
    "options of another kind": ("apikey", "options", "7", "key", "options", 401),
    "models as one name": ("apikey", "models_allowed", '"odd-*"', "key", "models_allowed", 401),
    "no networks at all": ("apikey", "ip_allow", "{}", "key", "ip_allow", 401),
    "scopes as a word": ("apikey", "scopes", '"admin"', "key", "scopes", 401),
    "an end that is no instant": ("apikey", "expires", "never", "key", "expires", 401),
    "an end that no calendar has": (
        "apikey", "expires", "2026-13-45 00:00:00", "key", "expires", 401),
    "a revocation that is no instant": ("apikey", "revoked", "yes", "key", "revoked", 401),
    "a name in other bytes": ("apikey", "name", b"\xff", "key", "name", 401),
    "a team that is gone": ("apikey", "team_id", 99_999, "key", "team", 401),
    "a user who is gone": ("apikey", "user_id", 99_999, "key", "user", 401),
    "a user by name": ("apikey", "user_id", "ada", "key", "user", 401),
    "a successor that is gone": ("apikey", "successor_id", 99_999, "key", "successor", 401),
    "limits of its team": ("team", "limits", '"60"', "team", "limits", 401),
    "a store that nobody knows": ("team", "store", "all", "team", "store", 401),
    "a budget of words": ("budget", "usd", "a lot", "budget", "usd", 401),
    "a budget on Mars": ("budget", "zone", "Mars/Olympus", "budget", "zone", 401),
    "an address without scheme": ("upstream", "base_url", "a.example", "upstream", "base_url", 500),
    "a key sent in clear": (
        "upstream", "base_url", f"http://u:{SECRET}@a.example", "upstream", "base_url", 500),
    "a dialect that nobody speaks": ("upstream", "dialect", "gopher", "upstream", "dialect", 500),
    "capabilities as a list": (
        "upstream", "capabilities", "[1]", "upstream", "capabilities", 500),
    "timeouts in words": (
        "upstream", "timeouts", '{"idle_s": "long"}', "upstream", "timeouts", 500),
    "a secret as a number": ("upstream", "secret", "0", "upstream", "secret", 500),
    "an upstream that is gone": ("routetarget", "upstream_id", 99_999, "target", "upstream", 500),
    "a weight in words": ("routetarget", "weight", "heavy", "target", "weight", 500),
    "a route of nobody's": ("route", "team_id", 99_999, "route", "team", 404),
    "a price of words": ("price", "input", "cheap", "price", "input", 402),
    "a price since ever": ("price", "since", "ever", "price", "since", 402),
    "a price of nobody's": ("price", "upstream_id", 99_999, "price", "upstream", 402),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_it_is_left_out_and_told_and_a_revocation_arrives_nonetheless(
    gateway: Browser, house: House, reload: Callable[[], None], caplog, name: str
):
    table, column, value, kind, field, status = DAMAGE[name]
    other, secret = ApiKey.issue(Team.objects.get(name="platform"), "leaked")

    number = house.damage(table, column, value)
    reload()
    assert digest_of(secret) in directory.snapshot.keys
    other.revoke()
    reload()  # what was told before is told once

    assert gateway.post(message("chat-odd"), x_api_key=secret).status == 401
    assert gateway.post(message("odd-m"), x_api_key=house.secret).status == status
    told = f"{kind} {number}: {field} cannot be read"
    assert gateway.ask("GET", "/readyz").json["degraded"] == [told]
    lines = [line for line in caplog.messages if "cannot be read" in line]
    assert lines == [f"{told}: it is left out, and whatever depends on it"]
    assert SECRET not in caplog.text
    other.delete()


def test_a_row_that_is_mended_counts_at_once(
    gateway: Browser, house: House, reload: Callable[[], None], caplog
):
    for limits, status in (("[]", 401), ("{}", 200), ("[]", 401)):
        house.damage("apikey", "limits", limits)
        reload()

        assert gateway.post(message("odd-m"), x_api_key=house.secret).status == status
        assert bool(SEEN.unread) is (status == 401)

    assert len([line for line in caplog.messages if "limits cannot be read" in line]) == 2


def test_a_soft_budget_that_cannot_be_read_stops_nobody(
    gateway: Browser, house: House, reload: Callable[[], None]
):
    Budget.objects.filter(pk=house.budget.pk).update(hard=False)
    house.damage("budget", "usd", "a lot")
    reload()

    assert gateway.post(message("odd-m"), x_api_key=house.secret).status == 200


def test_without_the_database_the_same_rows_are_left_out(house: House, tmp_path):
    house.damage("team", "limits", "60")
    read = configuration.read()
    configuration.keep(read, tmp_path / "kept.json")

    kept = configuration.recall(tmp_path / "kept.json")

    assert [str(one) for one in read.unread] == [f"team {house.team.pk}: limits cannot be read"]
    assert {key.pk for key in kept.of(ApiKey)} == {key.pk for key in read.of(ApiKey)}
    assert house.key.pk not in {key.pk for key in kept.of(ApiKey)}


def test_one_row_among_many_is_found_and_their_order_stays(house: House):
    Route.objects.bulk_create(Route(model=f"odd-{n}", position=50 - n) for n in range(20))
    sql("UPDATE proxy_route SET position = %s WHERE model = %s", b"\xff", "odd-7")

    snapshot = load_snapshot()

    (one,) = snapshot.unread
    assert (one.kind, one.field) == ("route", "position")
    names = [model for _, model in snapshot.exact if model.startswith("odd-")]
    assert names == [f"odd-{n}" for n in reversed(range(20)) if n != 7]
    Route.objects.filter(model__startswith="odd-").exclude(pk=house.route.pk).delete()


@contextmanager
def away() -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise OSError("the database is away")

    with connection.execute_wrapper(refuse):
        yield


def test_a_database_that_is_away_makes_no_row_unreadable(house: House, reload):
    before = directory.snapshot

    with away():
        directory.look()

    assert directory.snapshot is before
    assert not directory.snapshot.unread
    reload()


def test_the_doctor_tells_them_with_what_would_be_right(house: House, capsys):
    house.damage("apikey", "limits", '{"rmp": 60}')
    house.damage("price", "since", "ever")
    house.damage("routetarget", "upstream_id", 99_999)

    with pytest.raises(CommandError):
        call_command("doctor", "--no-stream")

    told = capsys.readouterr().out
    assert f"key {house.key.pk}: limits cannot be read: unknown key 'rmp'" in told
    assert f"price {house.price.pk}: since cannot be read" in told
    assert f"target {house.target.pk}: upstream cannot be read" in told
    assert "the rest: cannot be examined" in told


def test_many_are_told_by_their_number(gateway: Browser, house: House, reload):
    keys = [ApiKey.issue(house.team, f"many-{n}")[0].pk for n in range(21)]
    sql("UPDATE proxy_apikey SET options = '1' WHERE name LIKE 'many-%%'")
    reload()

    degraded = gateway.ask("GET", "/readyz").json["degraded"]

    assert len(degraded) == 21
    assert degraded[-1] == "rows that cannot be read: 21"
    ApiKey.objects.filter(pk__in=keys).delete()
    assert Upstream.objects.filter(name="odd").exists()
