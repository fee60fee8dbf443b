"""People who sign in to the admin: sessions, guessed passwords, forms that say more than they may."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.test import Client
from django.utils.timezone import now

from proxy.models import ApiKey
from proxy.roles import MEMBER, OWNER
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough password"


@pytest.fixture
def olga() -> User:
    olga = cast.staff("olga", groups=(OWNER,))
    olga.set_password(PASSWORD)
    olga.save()
    return olga


def sign_in(client: Client, password: str = PASSWORD, **told):
    return client.post("/admin/login/", {"username": "olga", "password": password}, **told)


def is_in(client: Client) -> bool:
    return client.get("/admin/").status_code == 200


def test_a_session_that_somebody_else_chose_is_not_taken_on(olga):
    client = Client()
    client.cookies["sessionid"] = chosen = "chosenbysomebodyelse1234567890ab"

    sign_in(client)

    assert is_in(client)
    assert client.cookies["sessionid"].value != chosen
    assert client.cookies["sessionid"]["httponly"]
    assert client.cookies["sessionid"]["samesite"] == "Lax"


def test_a_session_is_dead_after_signing_out_and_in_again(olga):
    client = Client()
    sign_in(client)
    old = client.cookies["sessionid"].value

    client.post("/admin/logout/")
    sign_in(client)

    thief = Client()
    thief.cookies["sessionid"] = old
    assert is_in(client)
    assert not is_in(thief)


def test_a_new_password_ends_every_other_session(olga):
    first, second = Client(), Client()
    for client in (first, second):
        sign_in(client)
        assert is_in(client)

    second.post(
        "/admin/password_change/",
        {
            "old_password": PASSWORD,
            "new_password1": "another long one",
            "new_password2": "another long one",
        },
    )

    assert is_in(second)
    assert first.get("/admin/")["Location"].startswith("/admin/login/")


def test_a_session_ends_after_twelve_hours_however_busy(olga):
    client = Client()
    sign_in(client)
    ends = client.session.get_expiry_date()
    for _ in range(3):
        client.get("/admin/")

    assert client.session.get_expiry_date() - ends < timedelta(seconds=30)
    assert ends <= now() + timedelta(hours=12)


def test_a_deactivated_user_is_out_at_once(olga):
    client = Client()
    sign_in(client)
    User.objects.filter(pk=olga.pk).update(is_active=False)

    assert not is_in(client)


def test_the_sixth_guess_is_locked_out_even_with_the_right_password(olga):
    client = Client()
    guesses = [sign_in(client, "guess").status_code for _ in range(4)]

    fifth = sign_in(client, "guess")
    right = sign_in(client)

    assert guesses == [200] * 4
    assert fifth.status_code == right.status_code == 429
    assert right["Retry-After"] == "900"
    assert not right.has_header("Access-Control-Allow-Origin")
    assert "olga" not in right.content.decode()
    assert not is_in(client)


def test_a_lock_is_in_the_database_and_lasts_a_quarter_of_an_hour(olga):
    for _ in range(5):
        sign_in(Client(), "guess")
    assert sign_in(Client()).status_code == 429  # another connection, as after a restart

    AccessAttempt.objects.update(attempt_time=now() - timedelta(minutes=16))

    assert sign_in(Client()).status_code == 302


@pytest.mark.parametrize("header", ["x-forwarded-for", "x-real-ip", "forwarded", "x_forwarded_for"])
def test_an_address_that_the_client_only_claims_evades_no_lock(olga, header):
    answers = [
        sign_in(Client(), "guess", headers={header: f"203.0.113.{n}"}).status_code for n in range(6)
    ]

    assert answers[-1] == 429


def test_a_locked_address_locks_nobody_elsewhere_out(olga):
    for _ in range(6):
        sign_in(Client(REMOTE_ADDR="203.0.113.9"), "guess")

    assert sign_in(Client(REMOTE_ADDR="203.0.113.10")).status_code == 302


def test_a_password_that_was_typed_is_kept_nowhere(olga):
    sign_in(Client(), "typed-by-mistake-elsewhere")

    (attempt,) = AccessAttempt.objects.all()
    assert "typed-by-mistake" not in repr(vars(attempt))


def untouchable(row, fields):
    return {name: getattr(type(row).objects.get(pk=row.pk), name) for name in fields}


@pytest.mark.parametrize("group", [MEMBER, "team:platform"])
def test_a_form_writes_no_field_that_it_does_not_offer(group):
    """Mass assignment: every field of the model is submitted at once."""
    ben = cast.staff("ben", groups=(group,))
    key, _ = cast.key("ben", user=ben)
    fields = [field.attname for field in ApiKey._meta.concrete_fields]
    before = untouchable(key, fields)
    client = Client()
    client.force_login(ben)
    submitted = {
        **{field.name: "1" for field in ApiKey._meta.concrete_fields},
        "scopes": ["admin", "reports"], "prefix": "sk-br-evil", "digest": "0" * 64,
        "managed": "on", "_save": "Save",
    }  # fmt: skip

    for url in (f"/admin/proxy/apikey/{key.pk}/change/", "/admin/proxy/apikey/add/"):
        client.post(url, submitted)

    assert untouchable(key, fields) == before
    assert not [one for one in ApiKey.objects.all() if "admin" in one.scopes]


def test_nobody_makes_a_superuser_of_himself():
    owner = cast.staff("owner", groups=(OWNER,))
    client = Client()
    client.force_login(owner)
    forms = {
        f"/admin/auth/user/{owner.pk}/change/": {"username": "owner", "is_superuser": "on"},
        "/admin/auth/user/add/": {"username": "eve", "password1": PASSWORD, "password2": PASSWORD},
        "/admin/password_change/": {"is_superuser": "on", "old_password": "x"},
    }

    for url, told in forms.items():
        client.post(url, told | {"_save": "Save"})

    assert not User.objects.filter(is_superuser=True).exists()
    assert User.objects.count() == 1
