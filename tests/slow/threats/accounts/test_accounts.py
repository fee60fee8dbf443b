"""Admin accounts: sessions, password guessing, and forms with additional fields."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.test import Client
from django.utils.timezone import now

from proxy.models import ApiKey
from proxy.permissions.roles import MEMBER, OWNER
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough password"


@pytest.fixture
def olga() -> User:
    olga = factories.staff("olga", groups=(OWNER,))
    olga.set_password(PASSWORD)
    olga.save()
    return olga


def sign_in(client: Client, password: str = PASSWORD, **extra):
    return client.post("/admin/login/", {"username": "olga", "password": password}, **extra)


def is_signed_in(client: Client) -> bool:
    return client.get("/admin/").status_code == 200


def test_sign_in_replaces_a_fixed_session_id(olga):
    client = Client()
    client.cookies["sessionid"] = fixed_id = "fixedbyanattacker0001234567890ab"

    sign_in(client)

    assert is_signed_in(client)
    assert client.cookies["sessionid"].value != fixed_id
    assert client.cookies["sessionid"]["httponly"]
    assert client.cookies["sessionid"]["samesite"] == "Lax"


def test_old_session_is_invalid_after_sign_out(olga):
    client = Client()
    sign_in(client)
    old = client.cookies["sessionid"].value

    client.post("/admin/logout/")
    sign_in(client)

    other_client = Client()
    other_client.cookies["sessionid"] = old
    assert is_signed_in(client)
    assert not is_signed_in(other_client)


def test_password_change_ends_other_sessions(olga):
    first, second = Client(), Client()
    for client in (first, second):
        sign_in(client)
        assert is_signed_in(client)

    second.post(
        "/admin/password_change/",
        {
            "old_password": PASSWORD,
            "new_password1": "another long one",
            "new_password2": "another long one",
        },
    )

    assert is_signed_in(second)
    assert first.get("/admin/")["Location"].startswith("/admin/login/")


def test_session_ends_after_twelve_hours_despite_activity(olga):
    client = Client()
    sign_in(client)
    ends = client.session.get_expiry_date()
    for _ in range(3):
        client.get("/admin/")

    assert client.session.get_expiry_date() - ends < timedelta(seconds=30)
    assert ends <= now() + timedelta(hours=12)


def test_deactivated_user_is_signed_out(olga):
    client = Client()
    sign_in(client)
    User.objects.filter(pk=olga.pk).update(is_active=False)

    assert not is_signed_in(client)


def test_five_failures_lock_the_user_even_with_the_right_password(olga):
    client = Client()
    guesses = [sign_in(client, "guess").status_code for _ in range(4)]

    fifth = sign_in(client, "guess")
    right = sign_in(client)

    assert guesses == [200] * 4
    assert fifth.status_code == right.status_code == 429
    assert right["Retry-After"] == "900"
    assert not right.has_header("Access-Control-Allow-Origin")
    assert "olga" not in right.content.decode()
    assert not is_signed_in(client)


def test_lock_is_in_the_database_and_lasts_15_minutes(olga):
    for _ in range(5):
        sign_in(Client(), "guess")
    assert sign_in(Client()).status_code == 429  # a new client, as after a restart

    AccessAttempt.objects.update(attempt_time=now() - timedelta(minutes=16))

    assert sign_in(Client()).status_code == 302


@pytest.mark.parametrize("header", ["x-forwarded-for", "x-real-ip", "forwarded", "x_forwarded_for"])
def test_forwarded_address_headers_do_not_avoid_the_lock(olga, header):
    answers = [
        sign_in(Client(), "guess", headers={header: f"203.0.113.{n}"}).status_code for n in range(6)
    ]

    assert answers[-1] == 429


def test_lock_of_one_address_does_not_affect_others(olga):
    for _ in range(6):
        sign_in(Client(REMOTE_ADDR="203.0.113.9"), "guess")

    assert sign_in(Client(REMOTE_ADDR="203.0.113.10")).status_code == 302


def test_failed_password_is_not_stored(olga):
    sign_in(Client(), "typed-by-mistake-elsewhere")

    (attempt,) = AccessAttempt.objects.all()
    assert "typed-by-mistake" not in repr(vars(attempt))


def field_values(row, fields):
    return {name: getattr(type(row).objects.get(pk=row.pk), name) for name in fields}


@pytest.mark.parametrize("group", [MEMBER, "team:platform"])
def test_form_writes_only_its_own_fields(group):
    """Mass assignment: the form submits every field of the model."""
    ben = factories.staff("ben", groups=(group,))
    key, _ = factories.key("ben", user=ben)
    fields = [field.attname for field in ApiKey._meta.concrete_fields]
    before = field_values(key, fields)
    client = Client()
    client.force_login(ben)
    submitted = {
        **{field.name: "1" for field in ApiKey._meta.concrete_fields},
        "scopes": ["admin", "reports"], "prefix": "sk-br-evil", "digest": "0" * 64,
        "managed": "on", "_save": "Save",
    }  # fmt: skip

    for url in (f"/admin/proxy/apikey/{key.pk}/change/", "/admin/proxy/apikey/add/"):
        client.post(url, submitted)

    assert field_values(key, fields) == before
    assert not [one for one in ApiKey.objects.all() if "admin" in one.scopes]


def test_owner_cannot_become_superuser():
    owner = factories.staff("owner", groups=(OWNER,))
    client = Client()
    client.force_login(owner)
    forms = {
        f"/admin/auth/user/{owner.pk}/change/": {"username": "owner", "is_superuser": "on"},
        "/admin/auth/user/add/": {"username": "eve", "password1": PASSWORD, "password2": PASSWORD},
        "/admin/password_change/": {"is_superuser": "on", "old_password": "x"},
    }

    for url, extra in forms.items():
        client.post(url, extra | {"_save": "Save"})

    assert not User.objects.filter(is_superuser=True).exists()
    assert User.objects.count() == 1
