"""A configuration row that cannot be read is left out and reported, and the others stay in use.

The tests write invalid values by SQL, without any validation, while the gateway runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.core.management import call_command
from django.db import connection

from proxy.gateway.snapshot import config_cache
from proxy.gateway.snapshot.config_snapshot import directory, load_snapshot
from proxy.models import ApiKey, Budget, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.models.setup.config_row_validation import SKIPPED
from proxy.secrets import digest_of
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message
from tests.proxy.gateway.http_client import GatewayClient

SECRET = "sk-hidden-in-a-row"


def sql(text: str, *values: object) -> None:
    """Execute SQL without foreign keys and signals, and increase the revision."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA foreign_keys = OFF")
        cursor.execute(text, values)
        cursor.execute("PRAGMA foreign_keys = ON")
    Revision.bump()


class ConfigRows:
    """One row of each model: a team with a key, an upstream, a route, a price and a budget."""

    def __init__(self, scripted: ScriptedUpstream) -> None:
        self.team = Team.objects.create(name="unreadable")
        self.key, self.secret = ApiKey.issue(self.team, "k")
        self.upstream = add_upstream("unreadable", "chat", scripted.base_url)
        self.route = add_route("unreadable-*", self.upstream)
        self.target = RouteTarget.objects.get(route=self.route)
        self.price = Price.objects.create(
            model="unreadable-m", since="2026-01-01", input=1, output=1
        )
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
def rows(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload: Callable[[], None]
) -> Iterator[ConfigRows]:
    scripted.on("unreadable-m", upstream_scripts.chat())
    created = ConfigRows(scripted)
    reload()
    yield created
    created.remove()
    reload()


# table, column, value; reported kind and field; the status of a request with the team's key
DAMAGE = {
    "limits of another kind": ("apikey", "limits", "[60]", "key", "limits", 401),
    "an unknown limit": ("apikey", "limits", '{"rmp": 60}', "key", "limits", 401),
    "a limit in words": ("apikey", "limits", f'{{"rpm": "{SECRET}"}}', "key", "limits", 401),
    "options of another kind": ("apikey", "options", "7", "key", "options", 401),
    "models as one name": ("apikey", "models_allowed", '"unreadable-*"', "key", "models_allowed", 401),
    "no networks at all": ("apikey", "ip_allow", "{}", "key", "ip_allow", 401),
    "scopes as a word": ("apikey", "scopes", '"admin"', "key", "scopes", 401),
    "an expiry that is no timestamp": ("apikey", "expires", "never", "key", "expires", 401),
    "an expiry on an invalid date": (
        "apikey", "expires", "2026-13-45 00:00:00", "key", "expires", 401),
    "a revocation that is no timestamp": ("apikey", "revoked", "yes", "key", "revoked", 401),
    "a name in other bytes": ("apikey", "name", b"\xff", "key", "name", 401),
    "a name that is too long": ("apikey", "name", "k" * 65, "key", "name", 401),
    "a team that is gone": ("apikey", "team_id", 99_999, "key", "team", 401),
    "a user who is gone": ("apikey", "user_id", 99_999, "key", "user", 401),
    "a user by name": ("apikey", "user_id", "ada", "key", "user", 401),
    "a successor that is gone": ("apikey", "successor_id", 99_999, "key", "successor", 401),
    "limits of its team": ("team", "limits", '"60"', "team", "limits", 401),
    "an unknown store": ("team", "store", "all", "team", "store", 401),
    "a budget of words": ("budget", "usd", "a lot", "budget", "usd", 401),
    "a budget on Mars": ("budget", "zone", "Mars/Olympus", "budget", "zone", 401),
    "an address without scheme": ("upstream", "base_url", "a.example", "upstream", "base_url", 500),
    "a key sent in clear": (
        "upstream", "base_url", f"http://u:{SECRET}@a.example", "upstream", "base_url", 500),
    "an unknown dialect": ("upstream", "dialect", "gopher", "upstream", "dialect", 500),
    "capabilities as a list": (
        "upstream", "capabilities", "[1]", "upstream", "capabilities", 500),
    "timeouts in words": (
        "upstream", "timeouts", '{"idle_s": "long"}', "upstream", "timeouts", 500),
    "a secret as a number": ("upstream", "secret", "0", "upstream", "secret", 500),
    "an upstream that is gone": ("routetarget", "upstream_id", 99_999, "target", "upstream", 500),
    "a weight in words": ("routetarget", "weight", "heavy", "target", "weight", 500),
    "a route of a missing team": ("route", "team_id", 99_999, "route", "team", 404),
    "a price of words": ("price", "input", "cheap", "price", "input", 402),
    "a price without a start date": ("price", "since", "ever", "price", "since", 402),
    "a price of a missing upstream": ("price", "upstream_id", 99_999, "price", "upstream", 402),
}  # fmt: skip


EXAMPLES = {
    "a limit in words", "an expiry that is no timestamp", "a name in other bytes",
    "a team that is gone", "limits of its team", "a budget of words", "a key sent in clear",
    "an upstream that is gone", "a route of a missing team", "a price of words",
}  # fmt: skip
"""One of each table and of each kind of damage."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in EXAMPLES else pytest.mark.slow) for name in DAMAGE],
)
def test_an_unreadable_row_is_left_out_and_reported_and_revocations_still_apply(
    gateway: GatewayClient, rows: ConfigRows, reload: Callable[[], None], caplog, name: str
):
    table, column, value, kind, field, status = DAMAGE[name]
    other, secret = ApiKey.issue(Team.objects.get(name="platform"), "leaked")

    number = rows.damage(table, column, value)
    reload()
    assert digest_of(secret) in directory.snapshot.keys
    other.revoke()
    reload()  # the row is reported only once

    assert gateway.post(message("chat-unreadable"), x_api_key=secret).status == 401
    assert gateway.post(message("unreadable-m"), x_api_key=rows.secret).status == status
    reported = f"{kind} {number}: {field} cannot be read"
    assert gateway.request("GET", "/readyz").json["degraded"] == [reported]
    lines = [line for line in caplog.messages if "cannot be read" in line]
    assert lines == [f"{reported}: it is left out, and whatever depends on it"]
    assert SECRET not in caplog.text
    other.delete()


def test_invalid_utf_8_makes_only_its_row_unreadable(
    gateway: GatewayClient, rows: ConfigRows, reload: Callable[[], None]
):
    sql("UPDATE proxy_apikey SET name = CAST(x'ff' AS TEXT) WHERE id = %s", rows.key.pk)
    reload()

    assert [str(row) for row in SKIPPED.rows] == [f"key {rows.key.pk}: name cannot be read"]
    assert digest_of(rows.secret) not in directory.snapshot.keys
    assert directory.snapshot.keys


def test_a_repaired_row_is_used_after_the_next_reload(
    gateway: GatewayClient, rows: ConfigRows, reload: Callable[[], None], caplog
):
    for limits, status in (("[]", 401), ("{}", 200), ("[]", 401)):
        rows.damage("apikey", "limits", limits)
        reload()

        assert gateway.post(message("unreadable-m"), x_api_key=rows.secret).status == status
        assert bool(SKIPPED.rows) is (status == 401)

    assert len([line for line in caplog.messages if "limits cannot be read" in line]) == 2


def test_an_unreadable_soft_budget_blocks_no_request(
    gateway: GatewayClient, rows: ConfigRows, reload: Callable[[], None]
):
    Budget.objects.filter(pk=rows.budget.pk).update(hard=False)
    rows.damage("budget", "usd", "a lot")
    reload()

    assert gateway.post(message("unreadable-m"), x_api_key=rows.secret).status == 200


def test_the_cached_configuration_leaves_out_the_same_rows(rows: ConfigRows, tmp_path):
    rows.damage("team", "limits", "60")
    configuration = config_cache.read_database()
    config_cache.save_cached(configuration, tmp_path / "cached.json")

    cached = config_cache.load_cached(tmp_path / "cached.json")

    assert [str(one) for one in configuration.unreadable] == [
        f"team {rows.team.pk}: limits cannot be read"
    ]
    assert {key.pk for key in cached.rows_of(ApiKey)} == {
        key.pk for key in configuration.rows_of(ApiKey)
    }
    assert rows.key.pk not in {key.pk for key in cached.rows_of(ApiKey)}


def test_one_unreadable_row_does_not_change_the_order_of_the_others(rows: ConfigRows):
    Route.objects.bulk_create(Route(model=f"unreadable-{n}", position=50 - n) for n in range(20))
    sql("UPDATE proxy_route SET position = %s WHERE model = %s", b"\xff", "unreadable-7")

    snapshot = load_snapshot()

    (one,) = snapshot.unreadable
    assert (one.kind, one.field) == ("route", "position")
    names = [model for _, model in snapshot.exact if model.startswith("unreadable-")]
    assert names == [f"unreadable-{n}" for n in reversed(range(20)) if n != 7]
    Route.objects.filter(model__startswith="unreadable-").exclude(pk=rows.route.pk).delete()


@contextmanager
def unreachable_database() -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise OSError("the database is away")

    with connection.execute_wrapper(refuse):
        yield


def test_an_unreachable_database_makes_no_row_unreadable(rows: ConfigRows, reload):
    before = directory.snapshot

    with unreachable_database():
        directory.poll()

    assert directory.snapshot is before
    assert not directory.snapshot.unreadable
    reload()


def test_the_doctor_command_reports_unreadable_rows_with_the_reason(rows: ConfigRows, capsys):
    rows.damage("apikey", "limits", '{"rmp": 60}')
    rows.damage("price", "since", "ever")
    rows.damage("routetarget", "upstream_id", 99_999)

    with pytest.raises(SystemExit):
        call_command("doctor", "--no-stream")

    output = capsys.readouterr().out
    assert f"key {rows.key.pk}: limits cannot be read: unknown key 'rmp'" in output
    assert f"price {rows.price.pk}: since cannot be read" in output
    assert f"target {rows.target.pk}: upstream cannot be read" in output
    assert "other checks: cannot run" in output


def test_readyz_summarizes_many_unreadable_rows(gateway: GatewayClient, rows: ConfigRows, reload):
    keys = [ApiKey.issue(rows.team, f"many-{n}")[0].pk for n in range(21)]
    sql("UPDATE proxy_apikey SET options = '1' WHERE name LIKE 'many-%%'")
    reload()

    degraded = gateway.request("GET", "/readyz").json["degraded"]

    assert len(degraded) == 21
    assert degraded[-1] == "rows that cannot be read: 21"
    ApiKey.objects.filter(pk__in=keys).delete()
    assert Upstream.objects.filter(name="unreadable").exists()
