"""A name is taken if a user has it, in whatever case, or if it is reserved."""

import pytest

from proxy.permissions.usernames import is_taken
from tests.proxy.admin import factories


@pytest.mark.django_db
def test_names_of_users_and_reserved_names_are_taken() -> None:
    factories.staff("ada")
    factories.record(opening={"user": "gone"})

    taken = {name: is_taken(name) for name in ("ADA", "root", "gone", "new")}

    assert taken == {"ADA": True, "root": True, "gone": False, "new": False}
