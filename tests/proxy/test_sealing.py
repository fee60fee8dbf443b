"""Upstream secrets in the database: encrypted, for one base URL, and never seen again (T15, T34)."""

import base64
import io
import json

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import applying, reading
from proxy.config.exporting import export
from proxy.config.upstreams import check_used_upstreams
from proxy.gateway.directory import load_snapshot
from proxy.models import Route, RouteTarget, Upstream
from proxy.roles import AUDITOR
from proxy.sealing import resealed, seal, unseal
from proxy.secrets import ConfigError
from tests.proxy.admin import cast

SECRET = "sk-live-canary-0123456789abcdef"
BASE = "https://api.example.com/v1"
NEW_KEY = "n" + "ew5Key" * 12


@given(st.text(min_size=1), st.text())
def test_what_was_sealed_opens_in_its_place_only(secret, place):
    sealed = seal(secret, place)

    assert unseal(sealed, place) == secret
    with pytest.raises(ConfigError, match="enter it anew"):
        unseal(sealed, place + "/")


def test_no_byte_of_it_can_be_changed():
    sealed = seal(SECRET, BASE)
    raw = bytearray(base64.urlsafe_b64decode(sealed[3:]))
    for at in range(len(raw)):
        raw[at] ^= 1
        with pytest.raises(ConfigError):
            unseal("v1." + base64.urlsafe_b64encode(raw).decode(), BASE)
        raw[at] ^= 1


@pytest.mark.parametrize("text", ["", "v1.", "v1.AAAA", "nonsense", "v1.ü", "v1." + "A" * 15])
def test_nonsense_is_told_and_nothing_breaks(text):
    with pytest.raises(ConfigError, match="cannot be read"):
        unseal(text, BASE)


def test_the_same_secret_never_looks_the_same_nor_like_itself():
    assert len({seal(SECRET, BASE) for _ in range(100)}) == 100
    assert SECRET not in seal(SECRET, BASE)


def test_a_new_secret_key_reads_what_the_old_one_sealed_while_that_is_named():
    from django.conf import settings

    old = settings.SECRET_KEY
    sealed = seal(SECRET, BASE)
    with override_settings(SECRET_KEY=NEW_KEY, SECRET_KEY_FALLBACKS=[old]):
        again = resealed(sealed, BASE)
        assert resealed(again, BASE) == again
    with override_settings(SECRET_KEY=NEW_KEY, SECRET_KEY_FALLBACKS=[]):
        assert unseal(again, BASE) == SECRET
        with pytest.raises(ConfigError):
            unseal(sealed, BASE)


@pytest.fixture
def stored(db):
    """An upstream with a stored secret, and a route to it."""
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url=BASE, secret={"sealed": seal(SECRET, BASE)}
    )
    RouteTarget.objects.create(route=Route.objects.create(model="claude-*"), upstream=upstream)
    return upstream


def form(**changed):
    return {
        "name": "vllm", "dialect": "chat", "base_url": BASE, "secret": "{}", "new_secret": "",
        "enabled": "on", "profile": "generic", "capabilities": "{}", "timeouts": "{}",
        "extra_body": "{}", "when_client_leaves": "abort", "connection_reuse": "shared",
    } | changed  # fmt: skip


@pytest.fixture
def root(client, db):
    client.force_login(cast.superuser())
    return client


KEPT = json.dumps({"sealed": "kept as it is"})


class TestTheForm:
    def test_takes_a_secret_and_shows_it_nowhere(self, root):
        answer = root.post(
            "/admin/proxy/upstream/add/", form(new_secret=SECRET, _continue="1"), follow=True
        )

        upstream = Upstream.objects.get()
        assert upstream.credential() == SECRET
        told = LogEntry.objects.get(object_id=str(upstream.pk)).get_change_message()
        for text in (answer.content.decode(), told, json.dumps(upstream.secret)):
            assert SECRET not in text
        assert upstream.secret["sealed"] not in answer.content.decode()

    def test_keeps_what_is_there_when_nothing_is_entered(self, root, stored):
        page = f"/admin/proxy/upstream/{stored.pk}/change/"
        shown = root.get(page).content.decode()
        assert "kept as it is" in shown
        assert stored.secret["sealed"] not in shown

        answer = root.post(page, form(secret=KEPT, timeouts='{"idle_s": 60}'))

        assert answer.status_code == 302, answer.content.decode()
        stored.refresh_from_db()
        assert stored.timeouts == {"idle_s": 60}
        assert stored.credential() == SECRET

    def test_wants_it_anew_for_another_base_url(self, root, stored):
        page = f"/admin/proxy/upstream/{stored.pk}/change/"
        elsewhere = "https://evil.example/v1"

        refused = root.post(page, form(secret=KEPT, base_url=elsewhere))
        assert "enter it anew" in refused.content.decode()
        stored.refresh_from_db()
        assert stored.base_url == BASE

        taken = root.post(page, form(secret=KEPT, base_url=elsewhere, new_secret="another-one"))
        assert taken.status_code == 302
        stored.refresh_from_db()
        assert (stored.base_url, stored.credential()) == (elsewhere, "another-one")

    @pytest.mark.parametrize(
        ("secret", "becomes"),
        [("{}", ""), ('{"env": "SEALING_TESTS"}', "from the environment")],
    )
    def test_forgets_it_for_a_reference_or_for_none(
        self, root, stored, monkeypatch, secret, becomes
    ):
        monkeypatch.setenv("SEALING_TESTS", "from the environment")
        sealed = stored.secret["sealed"]
        root.post(f"/admin/proxy/upstream/{stored.pk}/change/", form(secret=secret))

        stored.refresh_from_db()
        assert stored.credential() == becomes
        told = LogEntry.objects.get(object_id=str(stored.pk)).get_change_message()
        assert "secret: a stored secret → {" in told
        assert sealed not in told

    @pytest.mark.parametrize(
        "changed",
        [
            {"secret": '{"sealed": "v1.AAAA"}'},  # a copied text of another row
            {"secret": SECRET},
            {"secret": '{"env": ""}'},
            {"new_secret": "a\tb"},
            {"new_secret": "schlüssel"},
        ],
        ids=str,
    )
    def test_refuses_what_is_no_secret(self, root, stored, changed):
        page = f"/admin/proxy/upstream/{stored.pk}/change/"
        answer = root.post(page, form(**changed))

        assert answer.status_code == 200
        stored.refresh_from_db()
        assert stored.credential() == SECRET

    def test_a_sealed_text_moved_to_another_row_opens_nothing(self, stored):
        stored.base_url = "https://evil.example/v1"
        with pytest.raises(ConfigError):
            stored.credential()

    def test_whoever_only_looks_sees_where_it_is(self, client, stored):
        client.force_login(cast.staff("eve", groups=(AUDITOR,)))
        shown = client.get(f"/admin/proxy/upstream/{stored.pk}/change/").content.decode()

        assert "stored, encrypted for this base URL" in shown
        assert stored.secret["sealed"] not in shown


def test_the_directory_calls_with_it(stored):
    (route,) = load_snapshot().globs

    assert route.targets[0].server.headers["authorization"] == f"Bearer {SECRET}"


def test_one_that_cannot_be_read_breaks_only_its_upstream(stored, caplog):
    with override_settings(SECRET_KEY=NEW_KEY):
        check_used_upstreams()  # the admin must start, for there it is mended
        assert "enter it anew" in load_snapshot().broken["vllm"]
    assert SECRET not in caplog.text


def test_a_start_seals_it_by_the_new_key(stored):
    from django.conf import settings

    with override_settings(SECRET_KEY=NEW_KEY, SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        check_used_upstreams()
    stored.refresh_from_db()
    with override_settings(SECRET_KEY=NEW_KEY):
        assert stored.credential() == SECRET


class TestTheFile:
    def test_never_gets_it(self, stored):
        assert SECRET not in export()
        assert stored.secret["sealed"] not in export()

    def test_says_nothing_of_it_and_so_it_stays(self, stored):
        applying.apply(reading.read(export()))

        stored.refresh_from_db()
        assert stored.managed
        assert stored.credential() == SECRET
        assert applying.apply(reading.read(export())) == []

    def test_cannot_send_it_elsewhere(self, stored):
        elsewhere = export().replace("api.example.com", "evil.example")

        with pytest.raises(ConfigError) as told:
            applying.apply(reading.read(elsewhere))

        assert "evil.example" in str(told.value)
        assert BASE in str(told.value)

    def test_replaces_it_by_naming_another(self, stored, monkeypatch):
        monkeypatch.setenv("SEALING_TESTS", "from the environment")
        named = export().replace(
            f'base_url = "{BASE}"', f'base_url = "{BASE}"\napi_key = {{ env = "SEALING_TESTS" }}'
        )
        changes = applying.apply(reading.read(named))

        stored.refresh_from_db()
        assert stored.credential() == "from the environment"
        assert "v1." not in "".join(map(str, changes))


def test_a_dump_of_the_database_holds_none(stored):
    dumped = io.StringIO()
    call_command("dumpdata", stdout=dumped)

    assert "vllm" in dumped.getvalue()
    assert SECRET not in dumped.getvalue()
