"""Budgets of a bridge.toml: alert recipients, owners, export and errors."""

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from proxy.config import apply, dump, load
from proxy.models import ApiKey, Budget, Team
from proxy.secrets import ConfigError
from tests.for_each import for_each

FILE = """
[[teams]]
name = "platform"
budgets = [{{ usd = "500", period = "week", zone = "Europe/Berlin", {recipients} }}]
"""
RECIPIENTS = 'emails = ["ada@example.com"]'


@pytest.mark.django_db
def test_a_budget_with_alert_recipients_is_applied_exported_and_applied_again():
    file = load.read(FILE.format(recipients=RECIPIENTS))
    apply.apply(file)

    budget = Budget.objects.get()
    assert budget.emails == ["ada@example.com"]
    assert budget.managed
    assert apply.apply(file) == []
    assert apply.apply(load.read(dump.export())) == []


MODEL_BUDGETS = """
[[teams]]
name = "platform"
budgets = [
  { usd = "500" },
  { usd = "50", models = ["claude-opus-*"] },
  { usd = "5", models = ["claude-haiku-*", "gpt-5.2"], hard = false },
]
"""


@pytest.mark.django_db
def test_budgets_of_one_owner_and_period_differ_by_their_models():
    file = load.read(MODEL_BUDGETS)
    plan = apply.apply(file)

    assert any("platform a month for claude-opus-*" in str(line) for line in plan)
    assert [one.models_covered for one in Budget.objects.order_by("-usd")] == [
        [],
        ["claude-opus-*"],
        ["claude-haiku-*", "gpt-5.2"],
    ]
    assert apply.apply(file) == []
    assert apply.apply(load.read(dump.export())) == []


@pytest.mark.django_db
def test_limits_by_model_are_applied_exported_and_applied_again():
    file = load.read("""
        [[teams]]
        name = "platform"
        [teams.limits]
        rpm = 60
        [teams.limits.models]
        "claude-opus-*" = { rpm = 2, concurrency = 1 }
        "o3" = { tpm = 1000 }
    """)
    apply.apply(file)

    assert Team.objects.get().limits == {
        "rpm": 60,
        "models": {"claude-opus-*": {"rpm": 2, "concurrency": 1}, "o3": {"tpm": 1000}},
    }
    assert apply.apply(load.read(dump.export())) == []


@for_each(
    "models",
    ['{ "claude-*" = { rpm = 0 } }', '{ "claude-*" = { rps = 1 } }', '{ "" = { rpm = 1 } }'],
)
def test_a_wrong_limit_by_model_is_an_error(models):
    with pytest.raises(ConfigError, match=r"teams\[0\]\.limits\.models"):
        load.read(f'[[teams]]\nname = "platform"\nlimits = {{ models = {models} }}')


def test_two_budgets_for_the_same_models_are_an_error():
    twice = MODEL_BUDGETS.replace('["claude-haiku-*", "gpt-5.2"]', '["claude-opus-*"]')

    with pytest.raises(ConfigError, match=r"budgets\[1\] and .*budgets\[2\].* for claude-opus-\*"):
        load.read(twice)


@for_each("value", [[1], [""], "claude-*", ["x" * 201], ["a"] * 101])
def test_models_are_a_list_of_names(value):
    with pytest.raises(ValidationError):
        Budget(usd=5, models_covered=value).clean_fields()


@pytest.mark.django_db
def test_an_invalid_recipient_rejects_the_whole_file():
    with pytest.raises(ConfigError, match="valid email"):
        apply.apply(load.read(FILE.format(recipients='emails = ["nobody"]')))

    assert not Team.objects.exists()


@for_each("value", [[1], [None], [["ada@example.com"]], "ada@example.com"])
def test_a_row_rejects_anything_but_a_list_of_addresses(value):
    with pytest.raises(ValidationError):
        Budget(usd=5, emails=value).clean_fields()


ALL_OWNERS = """
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
emails = ["ada@example.com"]
"""


@pytest.fixture
def ada(db):
    return User.objects.create(username="ada@example.com")


def owners():
    return {(one.owner, one.period, str(one.usd.normalize())) for one in Budget.objects.all()}


def test_top_level_budgets_are_applied_exported_and_applied_again(ada):
    file = load.read(ALL_OWNERS)
    planned = [str(change) for change in apply.apply(file, dry_run=True)]
    assert not Budget.objects.exists()
    assert [str(change) for change in apply.apply(file)] == planned

    assert owners() == {
        ("team platform", "month", "5E+2"),
        ("team platform", "day", "5E+1"),
        ("key platform/ci", "week", "2E+1"),
        ("user ada@example.com", "month", "7.5"),
    }
    ada_budget = Budget.objects.get(user=ada)
    assert (ada_budget.hard, ada_budget.emails) == (False, ["ada@example.com"])
    assert ada_budget.managed
    assert "+ budget ada@example.com a month" in planned
    assert apply.apply(file) == []
    exported = dump.export()
    assert 'user = "ada@example.com"' in exported
    assert apply.apply(load.read(exported)) == []


def test_a_budget_removed_from_the_file_is_deleted_and_one_of_the_admin_stays(ada):
    apply.apply(load.read(ALL_OWNERS))
    Budget.objects.create(user=ada, usd=1, period="day")

    changes = apply.apply(load.read(ALL_OWNERS.partition("[[budgets]]")[0]))

    assert [str(change) for change in changes] == [
        "- budget platform a day",
        "- budget platform/ci a week",
        "- budget ada@example.com a month",
    ]
    assert owners() == {
        ("team platform", "month", "5E+2"),
        ("user ada@example.com", "day", "1"),
    }


def test_a_team_removed_from_the_file_loses_its_budgets(ada):
    apply.apply(load.read(ALL_OWNERS))
    apply.apply(load.read(""))

    assert not Budget.objects.exists()
    assert Team.objects.filter(managed=False).exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("entry", "recipients"),
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
        ('user = "ada"\nwebhook = "https://x.example/"', ["budgets[0]", "unknown key 'webhook'"]),
        ('usr = "ada"', ["budgets[0]: unknown key 'usr'", "did you mean 'user'"]),
    ],
)  # fmt: skip
def test_an_invalid_budget_is_rejected_with_its_path_and_nothing_is_applied(entry, recipients):
    User.objects.create(username="ada")
    Team.objects.create(name="research")
    text = ALL_OWNERS.partition("[[budgets]]")[0]

    with pytest.raises(ConfigError) as caught:
        apply.apply(load.read(f'{text}[[budgets]]\nusd = "1"\n{entry}\n'))

    assert [word for word in recipients if word not in str(caught.value)] == []
    assert not Budget.objects.exists()
    assert not ApiKey.objects.exists()
