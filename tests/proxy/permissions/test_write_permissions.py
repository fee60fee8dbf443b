"""Write rules that no form can reach; tests/repo/access/write_matrix.txt has the others."""

import pytest
from django.contrib.auth.models import Group, User

from proxy.models import ApiKey, Upstream
from proxy.permissions.roles import OWNER
from proxy.permissions.write_permissions import (
    CHANGE,
    REVOKE,
    ROTATE,
    WRITE_RULES,
    choices,
    faults,
    may_write,
    writer_of,
)
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    return factories.staff("ada", groups=(OWNER, "team:platform"))


@pytest.mark.parametrize("scopes", ["admin", {"admin": 1}, ["root"], [["admin"]], None])
def test_a_key_with_invalid_scopes_can_be_changed_by_superusers_only(ada, scopes):
    key = factories.key("ci")[0]
    key.scopes = scopes

    assert [field for field, _ in faults(ada, ROTATE, ApiKey, key)] == ["scopes"]
    assert may_write(factories.superuser(), ROTATE, ApiKey, key)
    assert may_write(ada, REVOKE, ApiKey, key)


def test_models_and_actions_without_a_rule_are_for_superusers(ada):
    assert Group not in WRITE_RULES
    assert not may_write(ada, CHANGE, Group)
    assert not may_write(ada, CHANGE, Upstream)
    assert not may_write(ada, "publish", ApiKey)
    assert may_write(factories.superuser(), CHANGE, Upstream)
    assert set(choices(ada, Upstream.objects.all())) == set(Upstream.objects.all())


def test_a_user_whose_last_key_of_a_team_is_revoked_leaves_the_team(ada):
    ben = factories.staff("ben")
    key = factories.key("ben", user=ben)[0]
    assert set(writer_of(ada).people()) == {ada, ben}

    key.revoke()

    assert set(writer_of(ada).people()) == {ada}
    ben.groups.add(Group.objects.get(name="team:platform"))
    assert set(writer_of(ada).people()) == {ada, ben}


def test_the_next_request_of_a_user_has_the_new_groups(ada):
    key = factories.key("lab", of="research")[0]
    assert not may_write(ada, CHANGE, ApiKey, key)

    ada.groups.add(Group.objects.create(name="team:research"))

    assert may_write(User.objects.get(username="ada"), CHANGE, ApiKey, key)
