"""Budgets from a file: who is told, by reference only; nothing wrong is half applied."""

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from proxy.config import applying, exporting, reading
from proxy.config.variables import check_environment
from proxy.models import ApiKey, Budget, Team
from proxy.secrets import ConfigError

FILE = """
[[teams]]
name = "platform"
budgets = [{{ usd = "500", period = "week", zone = "Europe/Berlin", {told} }}]
"""
TOLD = (
    'webhook = "https://hooks.example.com/x", webhook_secret = { env = "BRIDGE_HOOK" }, '
    'emails = ["ada@example.com"]'
)


@pytest.mark.django_db
def test_a_budget_with_whom_to_tell_is_applied_exported_and_applied_again():
    file = reading.read(FILE.format(told=TOLD))
    applying.apply(file)

    budget = Budget.objects.get()
    assert budget.webhook == "https://hooks.example.com/x"
    assert budget.webhook_secret == {"env": "BRIDGE_HOOK"}
    assert budget.emails == ["ada@example.com"]
    assert budget.managed
    assert applying.apply(file) == []
    assert applying.apply(reading.read(exporting.export())) == []
    check_environment({"BRIDGE_HOOK": "x"}, None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ('webhook = "http://hooks.example.com", webhook_secret = { env = "H" }', "https"),
        ('webhook = "https://a:b@hooks.example.com", webhook_secret = { env = "H" }', "password"),
        ('webhook = "https://hooks.example.com"', "webhook_secret"),
        ('emails = ["nobody"]', "valid email"),
    ],
)
def test_a_wrong_address_refuses_the_whole_file(told: str, complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        applying.apply(reading.read(FILE.format(told=told)))

    assert not Team.objects.exists()


@pytest.mark.parametrize("typed", [[1], [None], [["ada@example.com"]], "ada@example.com"])
def test_a_form_takes_a_list_of_addresses_and_nothing_else(typed):
    with pytest.raises(ValidationError):
        Budget(usd=5, emails=typed).clean()


def test_a_secret_is_never_written_in_the_file():
    with pytest.raises(ConfigError, match="webhook_secret"):
        reading.read(FILE.format(told='webhook_secret = "s3cret"'))


WHOLE = """
[[teams]]
name = "platform"
budgets = [{ usd = "500", period = "month" }]

[[keys]]
team = "platform"
name = "ci"

[[budgets]]
team = "platform"
usd = "50"
period = "day"
zone = "Asia/Tokyo"

[[budgets]]
key = "platform/ci"
usd = "20"
period = "week"

[[budgets]]
user = "ada@example.com"
usd = "7.5"
hard = false
webhook = "https://hooks.example.com/x"
webhook_secret = { env = "BRIDGE_HOOK" }
emails = ["ada@example.com"]
"""


@pytest.fixture
def ada(db):
    return User.objects.create(username="ada@example.com")


def owners():
    return {(one.owner, one.period, str(one.usd.normalize())) for one in Budget.objects.all()}


def test_budgets_that_stand_by_themselves_go_round(ada):
    file = reading.read(WHOLE)
    planned = [str(change) for change in applying.apply(file, dry_run=True)]
    assert not Budget.objects.exists()
    assert [str(change) for change in applying.apply(file)] == planned

    assert owners() == {
        ("team platform", "month", "5E+2"),
        ("team platform", "day", "5E+1"),
        ("key platform/ci", "week", "2E+1"),
        ("user ada@example.com", "month", "7.5"),
    }
    of_ada = Budget.objects.get(user=ada)
    assert (of_ada.hard, of_ada.emails) == (False, ["ada@example.com"])
    assert of_ada.managed
    assert "+ budget ada@example.com a month" in planned
    assert applying.apply(file) == []
    exported = exporting.export()
    assert 'user = "ada@example.com"' in exported
    assert applying.apply(reading.read(exported)) == []
    check_environment({"BRIDGE_HOOK": "x"}, None)


def test_a_budget_that_the_file_no_longer_has_is_gone_and_one_of_the_admin_stays(ada):
    applying.apply(reading.read(WHOLE))
    Budget.objects.create(user=ada, usd=1, period="day")

    changes = applying.apply(reading.read(WHOLE.partition("[[budgets]]")[0]))

    assert [str(change) for change in changes] == [
        "- budget platform a day",
        "- budget platform/ci a week",
        "- budget ada@example.com a month",
    ]
    assert owners() == {
        ("team platform", "month", "5E+2"),
        ("user ada@example.com", "day", "1"),
    }


def test_a_team_that_the_file_no_longer_has_loses_its_budgets(ada):
    applying.apply(reading.read(WHOLE))
    applying.apply(reading.read(""))

    assert not Budget.objects.exists()
    assert Team.objects.filter(managed=False).exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ('user = "adda"', ["budgets[0].user", "'adda'", "did you mean 'ada'"]),
        ('team = "platfrom"', ["budgets[0].team", "'platfrom'", "did you mean 'platform'"]),
        ('key = "platform/cii"', ["budgets[0].key", "'platform/cii'", "did you mean 'platform/ci'"]),
        ('team = "platform"\nuser = "ada"', ["budgets[0]", "one of team"]),
        ("", ["budgets[0]", "one of team"]),
        ('key = "ci"', ["budgets[0].key"]),
        ('team = "platform"\nzone = "Mars/Base"', ["budgets[0].zone", "Mars/Base"]),
        ('team = "platform"\nperiod = "month"',
         ["teams[0].budgets[0] and budgets[0] are both team platform a month in UTC"]),
        ('user = "ada"\nwebhook = "https://x.example/"', ["budgets[0]", "webhook_secret"]),
        ('usr = "ada"', ["budgets[0]: unknown key 'usr'", "did you mean 'user'"]),
    ],
)  # fmt: skip
def test_a_wrong_budget_is_refused_with_both_sides_and_nothing_is_applied(entry, told):
    User.objects.create(username="ada")
    Team.objects.create(name="research")
    text = WHOLE.partition("[[budgets]]")[0]

    with pytest.raises(ConfigError) as refused:
        applying.apply(reading.read(f'{text}[[budgets]]\nusd = "1"\n{entry}\n'))

    assert [word for word in told if word not in str(refused.value)] == []
    assert not Budget.objects.exists()
    assert not ApiKey.objects.exists()
