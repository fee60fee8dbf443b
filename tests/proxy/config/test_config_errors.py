"""Configuration errors name the entry and the expected value, and apply nothing (K01 to K07).

A wrong file or setting exits with 2; a wrong form shows an error on the page.
"""

import contextlib
import html
import json
import os
import re
import sqlite3
import tomllib
from typing import ClassVar

import pytest
from django.test import Client

from bridge_project import env
from proxy.bootstrap import env_check
from proxy.config import apply, load
from proxy.config.dump import export
from proxy.models import Price, Route, RouteTarget, Team, Upstream
from proxy.secrets import ConfigError
from proxy.server import sighup_reload
from tests.fakes.servers.prepared import copy_ledger
from tests.proxy.admin import factories

from .conftest import SECRET

MINIMAL = """
[[upstreams]]
name = "openai"
dialect = "responses"
base_url = "https://api.openai.com/v1"

[[routes]]
model = "claude-*"
targets = [{ upstream = "openai" }]
"""


def rejected_start(manage, tmp_path, toml, **environment):
    """Run ``serve`` with a wrong file; check exit code 2 and an empty database. Return stderr."""
    copy_ledger(tmp_path / "data", with_admin=False)
    (tmp_path / "bridge.toml").write_text(toml)
    run = manage("serve", "--port", "0", "--config", tmp_path / "bridge.toml", **environment)
    assert run.returncode == 2, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "ledger.sqlite3")) as database:
        for table in ("upstream", "route", "routetarget", "team", "apikey", "budget", "user"):
            name = "auth_user" if table == "user" else f"proxy_{table}"
            assert database.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)  # noqa: S608
    return run.stderr


@pytest.fixture
def root(client: Client, db):
    client.force_login(factories.superuser())
    return client


def upstream_form(**changed):
    return {
        "name": "vllm", "dialect": "chat", "base_url": "https://a.example",
        "enabled": "on", "profile": "generic", "when_client_leaves": "abort", "connection_reuse": "shared", "connection": "{}",
    } | changed  # fmt: skip


def route_form(*upstreams, **changed):
    targets = {
        f"targets-{place}-{name}": value
        for place, upstream in enumerate(upstreams)
        for name, value in (("upstream", upstream), ("position", place), ("weight", 1))
    }
    counts = {"targets-TOTAL_FORMS": len(upstreams), "targets-INITIAL_FORMS": 0}
    return {"model": "claude-*", "team": "", "position": 0, **targets, **counts} | changed


BAD_URLS = ("api.openai.com", "ftp://a.example", "https://u:p@a.example", "http://a.example.com")


class TestK01:
    """The URL of an upstream is invalid, has no scheme, or contains a password."""

    def test_k01_a_bad_url_prevents_the_start(self, manage, tmp_path):
        message = rejected_start(
            manage, tmp_path, MINIMAL.replace("https://api", "https://u:p@api")
        )

        assert "upstreams[0].base_url: a base URL cannot contain a user or password" in message
        assert "u:p" not in message

    @pytest.mark.django_db
    @pytest.mark.parametrize("url", BAD_URLS)
    def test_k01_a_bad_url_rejects_the_file(self, url):
        with pytest.raises(ConfigError, match=re.escape("upstreams[0]")):
            apply.apply(load.read(MINIMAL.replace("https://api.openai.com/v1", url)))
        assert not Upstream.objects.exists()

    @pytest.mark.parametrize("url", BAD_URLS)
    def test_k01_a_bad_url_is_an_error_of_the_form(self, root, url):
        response = root.post("/admin/proxy/upstream/add/", upstream_form(base_url=url))

        assert response.status_code == 200
        assert "base URL" in response.content.decode()
        assert not Upstream.objects.exists()

    @pytest.mark.django_db
    @pytest.mark.parametrize(
        ("dialect", "url", "right"),
        [
            ("responses", "https://a.example/v1/responses", "https://a.example/v1"),
            ("chat", "https://a.example/v1/chat/completions", "https://a.example/v1"),
            ("chat", "https://a.example/v1/responses", "https://a.example/v1"),
            ("anthropic", "https://a.example/v1/messages", "https://a.example"),
            ("anthropic", "https://a.example/v1", "https://a.example"),
        ],
    )
    def test_k01_a_url_of_an_endpoint_is_rejected_with_the_right_url(
        self, root, dialect, url, right
    ):
        message = f"base URL {url!r} names the endpoint, which is appended to it; write {right!r}"
        file = MINIMAL.replace('"responses"', f'"{dialect}"')
        file = file.replace("https://api.openai.com/v1", url)
        row = {"name": "vllm", "dialect": dialect, "base_url": url}

        form = root.post("/admin/proxy/upstream/add/", upstream_form(base_url=url, dialect=dialect))
        api = root.post("/api/v1/upstreams", row, content_type="application/json")

        assert message in html.unescape(form.content.decode())
        assert (api.status_code, api.json()["error"]["message"]) == (400, f"base_url: {message}")
        with pytest.raises(ConfigError) as caught:
            apply.apply(load.read(file))
        assert str(caught.value) == f"upstreams[0].base_url: {message}"
        assert not Upstream.objects.exists()


class TestK02:
    """The key of a used upstream is missing."""

    def test_k02_a_missing_key_is_reported_by_its_variable(self, manage, tmp_path, toml):
        copy_ledger(tmp_path / "data")
        (tmp_path / "bridge.toml").write_text(toml)
        run = manage(
            "serve", "--port", "0", "--config", tmp_path / "bridge.toml", BRIDGE_KEY_CI=SECRET
        )

        assert run.returncode == 2
        assert "upstream 'openai': environment variable OPENAI_API_KEY is missing" in run.stderr
        assert SECRET not in run.stdout + run.stderr
        assert not re.search(r"sk-br-|password (?!\()\S", run.stdout)

    @pytest.mark.django_db
    def test_k02_a_key_that_goes_missing_later_breaks_only_its_upstream(self, monkeypatch):
        from proxy.gateway.snapshot.config_snapshot import load_snapshot

        Upstream.objects.create(
            name="gone", dialect="chat", base_url="https://a.example", secret={"env": "K02_GONE"}
        )
        Upstream.objects.create(name="free", dialect="chat", base_url="https://b.example")
        monkeypatch.delenv("K02_GONE", raising=False)

        assert dict(load_snapshot().broken) == {
            "gone": "environment variable K02_GONE is missing or empty"
        }


class TestK03:
    """A model has two routes, or a route has no upstream."""

    DUPLICATE = MINIMAL + '[[routes]]\nmodel = "claude-*"\ntargets = [{ upstream = "openai" }]\n'
    NO_TARGETS = MINIMAL.replace('targets = [{ upstream = "openai" }]', "targets = []")
    MISSPELLED = MINIMAL.replace('{ upstream = "openai" }', '{ upstream = "opnai" }')

    def test_k03_a_duplicate_model_prevents_the_start(self, manage, tmp_path):
        message = rejected_start(manage, tmp_path, self.DUPLICATE)

        assert "routes[0] and routes[1] are both 'claude-*'" in message

    @pytest.mark.django_db
    @pytest.mark.parametrize(
        ("toml", "message"),
        [
            (DUPLICATE, ["routes[0] and routes[1]", "'claude-*'"]),
            (NO_TARGETS, ["routes[0].targets"]),
            (MISSPELLED, ["routes[0].targets[0].upstream", "'opnai'", "did you mean 'openai'"]),
            (MINIMAL.replace("[[routes]]", '[[routes]]\nteam = "unknown"'),
             ["routes[0].team", "'unknown'"]),
            (MINIMAL + MINIMAL.partition("[[routes]]")[0],
             ["upstreams[0] and upstreams[1]", "'openai'"]),
        ],
    )  # fmt: skip
    def test_k03_an_error_of_the_file_names_both_entries(self, toml, message):
        with pytest.raises(ConfigError) as caught:
            apply.apply(load.read(toml))

        assert [word for word in message if word not in str(caught.value)] == []
        assert not Route.objects.exists()
        assert not Upstream.objects.exists()

    def test_k03_an_error_of_the_form_names_both_routes(self, root):
        upstream = Upstream.objects.create(
            name="vllm", dialect="chat", base_url="https://a.example"
        )
        route = Route.objects.create(model="claude-*", position=7, managed=True)
        RouteTarget.objects.create(route=route, upstream=upstream)

        duplicate = root.post("/admin/proxy/route/add/", route_form(upstream.pk)).content.decode()
        no_targets = root.post(
            "/admin/proxy/route/add/", route_form(model="gpt-*")
        ).content.decode()
        unknown = root.post("/admin/proxy/route/add/", route_form(999, model="gpt-*"))

        assert "&#x27;claude-*&#x27; has a route for all teams already" in duplicate
        assert "the one at position 7, from bridge.toml" in duplicate
        assert "&#x27;gpt-*&#x27; has no target" in no_targets
        assert "Select a valid choice" in unknown.content.decode()
        assert Route.objects.count() == 1

    def test_k03_a_valid_route_is_accepted(self, root):
        upstream = Upstream.objects.create(
            name="vllm", dialect="chat", base_url="https://a.example"
        )
        response = root.post("/admin/proxy/route/add/", route_form(upstream.pk))

        assert response.status_code == 302, response.content.decode()
        assert Route.objects.get().targets.get().upstream == upstream


class TestK04:
    """A setting is unknown."""

    def test_k04_an_unknown_environment_variable_is_rejected(self, manage, tmp_path):
        run = manage("serve", "--port", "0", BRIDGE_DRAIN="3")

        assert run.returncode == 2
        assert "unknown setting BRIDGE_DRAIN; did you mean 'BRIDGE_DRAIN_S'?" in run.stderr
        assert "Traceback" not in run.stderr
        assert run.stdout == ""
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.django_db
    def test_k04_a_variable_that_a_row_refers_to_is_accepted(self):
        Upstream.objects.create(
            name="a", dialect="chat", base_url="https://a.example", secret={"env": "BRIDGE_OWN"}
        )

        env_check.check_early({"BRIDGE_OWN": "x"}, None)
        with pytest.raises(ConfigError, match="unknown setting BRIDGE_OWNN"):
            env_check.check_early({"BRIDGE_OWN": "x", "BRIDGE_OWNN": "x"}, None)

    def test_k04_a_former_name_counts_and_is_deprecated(self, monkeypatch, caplog):
        monkeypatch.setenv("BRIDGE_HOLD_S", "3")

        env_check.check_early(os.environ, None)

        assert env.env_seconds("BRIDGE_FIRST_EVENT_WAIT_S") == 3
        assert "BRIDGE_HOLD_S is deprecated; set BRIDGE_FIRST_EVENT_WAIT_S" in caplog.text
        monkeypatch.setenv("BRIDGE_FIRST_EVENT_WAIT_S", "4")
        assert env.env_seconds("BRIDGE_FIRST_EVENT_WAIT_S") == 4

    def test_k04_an_unknown_key_of_the_file_is_rejected(self, manage, tmp_path):
        message = rejected_start(manage, tmp_path, MINIMAL.replace("base_url", "base_ulr"))

        assert "upstreams[0]: unknown key 'base_ulr'; did you mean 'base_url'?" in message

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"capabilities_0": '{"no_such": true}'}, "no_such"),
            ({"timeouts_0": "soon"}, "Connect, seconds: a number, or empty"),
            ({"timeouts_3": "-1"}, "total_s: Expected float &gt; 0.0, found -1"),
            ({"profile": "gopher"}, "gopher"),
        ],
    )
    def test_k04_an_unknown_value_of_the_form_is_rejected(self, root, changed, message):
        response = root.post("/admin/proxy/upstream/add/", upstream_form(**changed))

        assert message in response.content.decode()
        assert not Upstream.objects.exists()


class TestModelCapabilities:
    """The capabilities of single models are set by file, form and API, and are checked alike."""

    GOOD: ClassVar = {"gpt-4o*": {"images": False}, "o3": {"efforts": ["low"]}}

    def test_they_are_set_everywhere_and_exported(self, root):
        file = MINIMAL.replace(
            "[[routes]]",
            'model_capabilities = { "gpt-4o*" = { images = false }, o3 = { efforts = ["low"] } }'
            "\n[[routes]]",
        )
        row = {"name": "api", "dialect": "chat", "base_url": "https://a.example"}

        page = upstream_form(name="form", model_capabilities=json.dumps(self.GOOD))
        form = root.post("/admin/proxy/upstream/add/", page)
        api = root.post(
            "/api/v1/upstreams",
            row | {"model_capabilities": self.GOOD},
            content_type="application/json",
        )
        apply.apply(load.read(file))

        assert (form.status_code, api.status_code) == (302, 201)
        assert api.json()["model_capabilities"] == self.GOOD
        stored = [*Upstream.objects.values_list("model_capabilities", flat=True)]
        assert stored == [self.GOOD] * 3
        assert tomllib.loads(export())["upstreams"][0]["model_capabilities"] == self.GOOD

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"gpt*": {"pictures": True}}, "models 'gpt*': unknown capability 'pictures'"),
            ({"gpt*": {"images": "no"}}, "models 'gpt*': capability 'images' is 'no'"),
            ({" ": {}}, "models ' ': "),
        ],
    )
    def test_a_mistake_is_rejected(self, root, value, message):
        page = upstream_form(model_capabilities=json.dumps(value))
        form = root.post("/admin/proxy/upstream/add/", page)

        assert message in html.unescape(form.content.decode())
        assert not Upstream.objects.exists()


class TestExtraBody:
    """``extra_body`` must not replace fields that the gateway sets and records."""

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ({"model": "gpt-9"}, "'model' is 'gpt-9'; the route's targets name the model"),
            (
                {"a": 1, "stream": False},
                "'stream' is False; the gateway decides whether a response is streamed",
            ),
        ],
    )
    def test_a_reserved_field_is_rejected_by_file_form_and_api(self, root, extra, message):
        toml = ", ".join(f"{name} = {json.dumps(value)}" for name, value in extra.items())
        file = MINIMAL.replace("[[routes]]", f"extra_body = {{ {toml} }}\n[[routes]]")
        row = {"name": "vllm", "dialect": "chat", "base_url": "https://a.example"}

        page = upstream_form(extra_body=json.dumps(extra))
        form = root.post("/admin/proxy/upstream/add/", page)
        api = root.post(
            "/api/v1/upstreams", row | {"extra_body": extra}, content_type="application/json"
        )

        assert message in html.unescape(form.content.decode())
        assert api.status_code == 400
        assert api.json()["error"]["message"].startswith(f"extra_body: {message}")
        with pytest.raises(ConfigError, match=re.escape(f"upstreams[0].extra_body: {message}")):
            apply.apply(load.read(file))
        assert not Upstream.objects.exists()

    @pytest.mark.parametrize(
        ("field", "message"),
        [
            ("capabilities_0", "Expected object, got array"),
            ("extra_body", "&#x27;[1]&#x27;: expected name = value"),
        ],
    )
    def test_a_form_accepts_only_objects(self, root, field, message):
        response = root.post("/admin/proxy/upstream/add/", upstream_form(**{field: "[1]"}))

        assert message in response.content.decode()
        assert not Upstream.objects.exists()


class TestK06:
    """A setting is unsafe in a network."""

    @pytest.mark.parametrize(
        ("environment", "arguments", "message"),
        [
            ({"BRIDGE_DEBUG": "1"}, (), "proxy.E010"),
            ({"BRIDGE_SECRET_KEY": "changeme"}, (), "BRIDGE_SECRET_KEY is too weak"),
            ({"BRIDGE_ALLOWED_HOSTS": "*"}, ("--host", "0.0.0.0"), "proxy.E011"),  # noqa: S104
        ],
    )
    def test_k06_an_unsafe_setting_prevents_the_start(
        self, manage, environment, arguments, message
    ):
        run = manage("serve", "--port", "0", *arguments, **environment)

        assert run.returncode == 2, run.stderr
        assert message in run.stderr
        assert "changeme" not in run.stderr


class TestK07:
    """A wrong file at SIGHUP or a wrong form changes nothing and is reported."""

    @pytest.mark.django_db(transaction=True)
    def test_k07_a_reload_with_an_error_in_its_last_line_changes_nothing(self, tmp_path, caplog):
        file = tmp_path / "bridge.toml"
        file.write_text(MINIMAL)
        sighup_reload.Reloader(file).reload()
        before = [*Upstream.objects.values(), *Route.objects.values(), *Team.objects.values()]
        file.write_text(
            MINIMAL.replace("api.openai.com", "elsewhere.example")
            + '[[teams]]\nname = "new"\n[[budgets]]\nteam = "nwe"\nusd = "1"\n'
        )

        sighup_reload.Reloader(file).reload()

        assert [
            *Upstream.objects.values(),
            *Route.objects.values(),
            *Team.objects.values(),
        ] == before
        (message,) = [
            record.getMessage() for record in caplog.records if record.levelname == "ERROR"
        ]
        assert "the old configuration stays" in message
        assert "budgets[0].team: no team 'nwe'; did you mean 'new'?" in message

    def test_k07_an_invalid_form_does_not_change_the_row(self, root):
        upstream = Upstream.objects.create(
            name="vllm", dialect="chat", base_url="https://a.example"
        )
        page = f"/admin/proxy/upstream/{upstream.pk}/change/"
        response = root.post(page, upstream_form(base_url="ftp://a.example", profile="openai"))

        assert response.status_code == 200
        upstream.refresh_from_db()
        assert (upstream.base_url, upstream.profile) == ("https://a.example", "generic")

    def test_k07_a_price_in_force_is_not_overwritten(self, root):
        from django.utils.timezone import now

        Price.objects.create(model="m", since=now().date(), input=1, output=1)
        toml = f'[[prices]]\nmodel = "m"\nsince = {now().date()}\nusd = {{ input = "2", output = "1" }}\n'

        with pytest.raises(ConfigError, match="in force and never overwritten"):
            apply.apply(load.read(toml))
        assert Price.objects.get().input == 1
