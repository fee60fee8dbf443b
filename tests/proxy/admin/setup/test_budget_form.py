"""The form of a budget: recipients without JSON, and a question about a second budget."""

import pytest

from proxy.models import Budget
from proxy.permissions.roles import OWNER
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
URL = "/admin/proxy/budget/add/"


def form(team, **changes):
    return {
        "team": team.pk, "key": "", "user": "", "usd": "20", "period": "month", "zone": "UTC",
        "hard": "on", "emails": "", "models_covered": "",
        "notices-TOTAL_FORMS": 0, "notices-INITIAL_FORMS": 0,
    } | changes  # fmt: skip


def test_recipients_are_plain_fields(root):
    team = factories.team()

    root.post(URL, form(team, emails="ops@example.com\nada@example.com"))

    budget = Budget.objects.get()
    assert budget.emails == ["ops@example.com", "ada@example.com"]
    page = root.get(f"/admin/proxy/budget/{budget.pk}/change/").content.decode()
    assert "ops@example.com\nada@example.com</textarea>" in page


def test_a_budget_of_some_models_is_no_second_budget_of_all_models(root):
    team = factories.team()
    root.post(URL, form(team))

    root.post(URL, form(team, models_covered="claude-opus-*\ngpt-5.2"))
    again = root.post(URL, form(team, models_covered="claude-opus-*\ngpt-5.2"))

    assert [one.models_covered for one in Budget.objects.order_by("pk")] == [
        [], ["claude-opus-*", "gpt-5.2"],
    ]  # fmt: skip
    assert "Check the box" in again.content.decode()
    page = root.get("/admin/proxy/budget/").content.decode()
    assert "a month for claude-opus-*, gpt-5.2" in page


def test_wrong_recipients_are_refused(root):
    answer = root.post(URL, form(factories.team(), emails="nobody"))

    assert "Enter a valid email address" in answer.content.decode()
    assert not Budget.objects.exists()


def test_a_second_budget_of_the_same_owner_and_period_asks(root):
    team = factories.team()
    Budget.objects.create(team=team, usd=500, managed=True)
    assert 'type="checkbox" name="second"' not in root.get(URL).content.decode()

    asked = root.post(URL, form(team)).content.decode()

    assert "Team platform has a budget of $500.00 a month already, set in bridge.toml" in asked
    assert 'type="checkbox" name="second"' in asked
    assert Budget.objects.count() == 1
    root.post(URL, form(team, second="on"))
    assert Budget.objects.count() == 2


def test_another_period_or_a_change_of_the_amount_asks_nothing(root):
    team = factories.team()
    for _ in range(2):
        first = Budget.objects.create(team=team, usd=500)

    added = root.post(URL, form(team, period="day"))
    changed = root.post(f"/admin/proxy/budget/{first.pk}/change/", form(team, usd="30"))

    assert (added.status_code, changed.status_code) == (302, 302)
    first.refresh_from_db()
    assert first.usd == 30


def test_the_question_does_not_tell_of_budgets_that_the_user_may_not_see(client):
    ben = factories.staff("ben")
    factories.key("ben", user=ben)
    Budget.objects.create(user=ben, usd=77)
    client.force_login(factories.staff("ada", groups=(OWNER, "team:platform")))

    sent = form(factories.team()) | {"team": "", "user": ben.pk}
    answer = client.post(URL, sent)

    assert "77" not in answer.content.decode()
    assert Budget.objects.count() == 1


def test_the_message_after_a_change_names_old_and_new_values(root):
    team = factories.team()
    budget = Budget.objects.create(team=team, usd=10)

    page = root.post(
        f"/admin/proxy/budget/{budget.pk}/change/",
        form(team),
        follow=True,
    ).content.decode()

    assert "Changed: usd: 10 → 20" in page
