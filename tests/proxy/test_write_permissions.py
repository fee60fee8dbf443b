"""What the table of writes says where no form leads; the rest is in tests/house/write_matrix.txt."""

import pytest
from django.contrib.auth.models import Group, User

from proxy.models import ApiKey, Upstream
from proxy.roles import OWNER
from proxy.write_permissions import (
    CHANGE,
    REVOKE,
    ROTATE,
    TABLE,
    choices,
    faults,
    may_write,
    writer_of,
)
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    return cast.staff("ada", groups=(OWNER, "team:platform"))


@pytest.mark.parametrize("scopes", ["admin", {"admin": 1}, ["root"], [["admin"]], None])
def test_a_key_whose_scopes_cannot_be_read_is_changed_by_superusers_alone(ada, scopes):
    key = cast.key("ci")[0]
    key.scopes = scopes

    assert [field for field, _ in faults(ada, ROTATE, ApiKey, key)] == ["scopes"]
    assert may_write(cast.superuser(), ROTATE, ApiKey, key)
    assert may_write(ada, REVOKE, ApiKey, key)


def test_what_the_table_does_not_name_is_for_superusers(ada):
    assert Upstream not in TABLE
    assert not may_write(ada, CHANGE, Upstream)
    assert not may_write(ada, "publish", ApiKey)
    assert may_write(cast.superuser(), CHANGE, Upstream)
    assert set(choices(ada, Upstream.objects.all())) == set(Upstream.objects.all())


def test_somebody_whose_last_key_of_a_team_is_revoked_is_not_of_the_team(ada):
    ben = cast.staff("ben")
    key = cast.key("ben", user=ben)[0]
    assert set(writer_of(ada).people()) == {ada, ben}

    key.revoke()

    assert set(writer_of(ada).people()) == {ada}
    ben.groups.add(Group.objects.get(name="team:platform"))
    assert set(writer_of(ada).people()) == {ada, ben}


def test_the_next_request_of_a_user_knows_of_new_groups(ada):
    key = cast.key("lab", of="research")[0]
    assert not may_write(ada, CHANGE, ApiKey, key)

    ada.groups.add(Group.objects.create(name="team:research"))

    assert may_write(User.objects.get(username="ada"), CHANGE, ApiKey, key)
