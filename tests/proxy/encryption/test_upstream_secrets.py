"""Encrypted upstream secrets in the database, bound to one base URL (T15, T34)."""

import base64
import io
import json

import pytest
from django.core.management import call_command
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import apply, load
from proxy.config.dump import export
from proxy.config.used_upstreams import check_used_upstreams
from proxy.encryption.upstream_secrets import decrypt_secret, encrypt_secret, reencrypt_secret
from proxy.gateway.snapshot.config_snapshot import load_snapshot
from proxy.models import AuditEntry, Route, RouteTarget, Upstream
from proxy.permissions.roles import AUDITOR
from proxy.secrets import ConfigError
from tests.for_each import for_each
from tests.proxy.admin import factories

SECRET = "sk-live-canary-0123456789abcdef"
BASE = "https://api.example.com/v1"
NEW_KEY = "n" + "ew5Key" * 12


@given(st.text(min_size=1), st.text())
def test_an_encrypted_secret_is_readable_only_for_its_base_url(secret, base_url):
    encrypted = encrypt_secret(secret, base_url)

    assert decrypt_secret(encrypted, base_url) == secret
    with pytest.raises(ConfigError, match="enter it again"):
        decrypt_secret(encrypted, base_url + "/")


def test_a_changed_byte_makes_the_secret_unreadable():
    encrypted = encrypt_secret(SECRET, BASE)
    raw = bytearray(base64.urlsafe_b64decode(encrypted[3:]))
    for at in range(len(raw)):
        raw[at] ^= 1
        with pytest.raises(ConfigError):
            decrypt_secret("v1." + base64.urlsafe_b64encode(raw).decode(), BASE)
        raw[at] ^= 1


@for_each("text", ["", "v1.", "v1.AAAA", "nonsense", "v1.ü", "v1." + "A" * 15])
def test_invalid_text_raises_a_config_error(text):
    with pytest.raises(ConfigError, match="cannot be read"):
        decrypt_secret(text, BASE)


def test_each_encryption_of_a_secret_is_different():
    assert len({encrypt_secret(SECRET, BASE) for _ in range(100)}) == 100
    assert SECRET not in encrypt_secret(SECRET, BASE)


def test_a_fallback_secret_key_can_decrypt_and_reencrypt():
    from django.conf import settings

    old = settings.SECRET_KEY
    encrypted = encrypt_secret(SECRET, BASE)
    with override_settings(SECRET_KEY=NEW_KEY, SECRET_KEY_FALLBACKS=[old]):
        again = reencrypt_secret(encrypted, BASE)
        assert reencrypt_secret(again, BASE) == again
    with override_settings(SECRET_KEY=NEW_KEY, SECRET_KEY_FALLBACKS=[]):
        assert decrypt_secret(again, BASE) == SECRET
        with pytest.raises(ConfigError):
            decrypt_secret(encrypted, BASE)


@pytest.fixture
def stored(db):
    """Create an upstream with an encrypted secret, and a route to it."""
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url=BASE, secret={"sealed": encrypt_secret(SECRET, BASE)}
    )
    RouteTarget.objects.create(route=Route.objects.create(model="claude-*"), upstream=upstream)
    return upstream


def form(**changed):
    return {
        "name": "vllm", "dialect": "chat", "base_url": BASE, "new_secret": "",
        "enabled": "on", "profile": "generic", "when_client_leaves": "abort", "connection_reuse": "shared",
    } | changed  # fmt: skip


@pytest.fixture
def root(client, db):
    client.force_login(factories.superuser())
    return client


UNCHANGED = {"secret_0": "sealed", "secret_1": ""}


class TestForm:
    def test_the_form_stores_a_secret_and_never_shows_it(self, root):
        response = root.post(
            "/admin/proxy/upstream/add/", form(new_secret=SECRET, _continue="1"), follow=True
        )

        upstream = Upstream.objects.get()
        assert upstream.credential() == SECRET
        message = str(AuditEntry.objects.filter(model="upstream").values())
        for text in (response.content.decode(), message, json.dumps(upstream.secret)):
            assert SECRET not in text
        assert upstream.secret["sealed"] not in response.content.decode()

    def test_an_empty_field_does_not_change_the_stored_secret(self, root, stored):
        page = f"/admin/proxy/upstream/{stored.pk}/change/"
        shown = root.get(page).content.decode()
        assert 'value="sealed" selected' in shown
        assert stored.secret["sealed"] not in shown

        response = root.post(page, form(**UNCHANGED, timeouts_2="60"))

        assert response.status_code == 302, response.content.decode()
        stored.refresh_from_db()
        assert stored.timeouts == {"idle_s": 60}
        assert stored.credential() == SECRET

    def test_another_base_url_needs_the_secret_again(self, root, stored):
        page = f"/admin/proxy/upstream/{stored.pk}/change/"
        elsewhere = "https://evil.example/v1"

        rejected = root.post(page, form(**UNCHANGED, base_url=elsewhere))
        assert "enter it again" in rejected.content.decode()
        stored.refresh_from_db()
        assert stored.base_url == BASE

        taken = root.post(page, form(**UNCHANGED, base_url=elsewhere, new_secret="another-one"))
        assert taken.status_code == 302
        stored.refresh_from_db()
        assert (stored.base_url, stored.credential()) == (elsewhere, "another-one")

    @pytest.mark.parametrize(
        ("secret", "becomes"),
        [
            ({"secret_0": "", "secret_1": ""}, ""),
            ({"secret_0": "env", "secret_1": "SEALING_TESTS"}, "from the environment"),
        ],
    )
    def test_a_reference_or_no_reference_replaces_the_stored_secret(
        self, root, stored, monkeypatch, secret, becomes
    ):
        monkeypatch.setenv("SEALING_TESTS", "from the environment")
        encrypted = stored.secret["sealed"]
        root.post(f"/admin/proxy/upstream/{stored.pk}/change/", form(**secret))

        stored.refresh_from_db()
        assert stored.credential() == becomes
        entry = AuditEntry.objects.get(model="upstream", action="change")
        assert entry.changes == {"secret": {"changed": True}}
        assert encrypted not in str(vars(entry))

    @pytest.mark.parametrize(
        "changed",
        [
            {"secret_0": "sealed", "secret_1": "v1.AAAA"},  # copied from another row
            {"secret_0": "", "secret_1": SECRET},
            {"secret_0": "env", "secret_1": ""},
            {"new_secret": "a\tb"},
            {"new_secret": "schlüssel"},
        ],
        ids=str,
    )
    def test_the_form_rejects_an_invalid_secret(self, root, stored, changed):
        page = f"/admin/proxy/upstream/{stored.pk}/change/"
        response = root.post(page, form(**changed))

        assert response.status_code == 200
        stored.refresh_from_db()
        assert stored.credential() == SECRET

    def test_an_encrypted_secret_copied_to_another_row_is_unreadable(self, stored):
        stored.base_url = "https://evil.example/v1"
        with pytest.raises(ConfigError):
            stored.credential()

    def test_an_auditor_sees_only_that_a_secret_is_stored(self, client, stored):
        client.force_login(factories.staff("eve", groups=(AUDITOR,)))
        shown = client.get(f"/admin/proxy/upstream/{stored.pk}/change/").content.decode()

        assert "stored, encrypted for this base URL" in shown
        assert stored.secret["sealed"] not in shown


def test_the_snapshot_sends_the_stored_secret(stored):
    (route,) = load_snapshot().globs

    credential = route.targets[0].server.credential.current
    assert credential is not None
    assert credential.headers["authorization"] == f"Bearer {SECRET}"


def test_an_unreadable_secret_breaks_only_its_upstream(stored, caplog):
    with override_settings(SECRET_KEY=NEW_KEY):
        check_used_upstreams()  # no error: the admin must start, to enter it again
        assert "enter it again" in load_snapshot().broken["vllm"]
    assert SECRET not in caplog.text


def test_a_start_reencrypts_with_the_new_secret_key(stored):
    from django.conf import settings

    with override_settings(SECRET_KEY=NEW_KEY, SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        check_used_upstreams()
    stored.refresh_from_db()
    with override_settings(SECRET_KEY=NEW_KEY):
        assert stored.credential() == SECRET


class TestFile:
    def test_an_export_does_not_contain_the_secret(self, stored):
        assert SECRET not in export()
        assert stored.secret["sealed"] not in export()

    def test_a_file_without_a_secret_does_not_change_the_stored_one(self, stored):
        apply.apply(load.read(export()))

        stored.refresh_from_db()
        assert stored.managed
        assert stored.credential() == SECRET
        assert apply.apply(load.read(export())) == []

    def test_a_file_cannot_change_the_base_url_of_a_stored_secret(self, stored):
        elsewhere = export().replace("api.example.com", "evil.example")

        with pytest.raises(ConfigError) as message:
            apply.apply(load.read(elsewhere))

        assert "evil.example" in str(message.value)
        assert BASE in str(message.value)

    def test_an_api_key_in_the_file_replaces_the_stored_secret(self, stored, monkeypatch):
        monkeypatch.setenv("SEALING_TESTS", "from the environment")
        named = export().replace(
            f'base_url = "{BASE}"', f'base_url = "{BASE}"\napi_key = {{ env = "SEALING_TESTS" }}'
        )
        changes = apply.apply(load.read(named))

        stored.refresh_from_db()
        assert stored.credential() == "from the environment"
        assert "v1." not in "".join(map(str, changes))


def test_a_database_dump_does_not_contain_the_secret(stored):
    dumped = io.StringIO()
    call_command("dumpdata", stdout=dumped)

    assert "vllm" in dumped.getvalue()
    assert SECRET not in dumped.getvalue()
