"""Every wrong configuration names both sides and applies nothing: promises.md K01 to K07.

The same by file (exit 2), by setting (exit 2) and by form (an error on the page).
"""

import contextlib
import html
import json
import re
import sqlite3

import pytest
from django.test import Client

from proxy.config import applying, reading, reloading, variables
from proxy.models import Price, Route, RouteTarget, Team, Upstream
from proxy.secrets import ConfigError
from tests.proxy.admin import cast

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


def refused(manage, tmp_path, toml, **environment):
    """What ``serve`` says of this file; it must end with 2, in one line, with nothing applied."""
    (tmp_path / "bridge.toml").write_text(toml)
    run = manage("serve", "--port", "0", "--config", tmp_path / "bridge.toml", **environment)
    assert run.returncode == 2, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    ledger = tmp_path / "data" / "ledger.sqlite3"
    if ledger.exists():
        with contextlib.closing(sqlite3.connect(ledger)) as link:
            for table in ("upstream", "route", "routetarget", "team", "apikey", "budget", "user"):
                name = "auth_user" if table == "user" else f"proxy_{table}"
                assert link.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)  # noqa: S608
    return run.stderr


@pytest.fixture
def root(client: Client, db):
    client.force_login(cast.superuser())
    return client


def upstream_form(**changed):
    return {
        "name": "vllm", "dialect": "chat", "base_url": "https://a.example", "secret": "{}",
        "enabled": "on", "profile": "generic", "capabilities": "{}", "timeouts": "{}",
        "extra_body": "{}", "when_client_leaves": "abort", "connection_reuse": "shared",
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
    """An upstream's URL is bad, without scheme, or holds a password."""

    def test_k01_refuses_the_start(self, manage, tmp_path):
        told = refused(manage, tmp_path, MINIMAL.replace("https://api", "https://u:p@api"))

        assert "upstreams[0].base_url: a base URL holds no user or password" in told
        assert "u:p" not in told

    @pytest.mark.django_db
    @pytest.mark.parametrize("url", BAD_URLS)
    def test_k01_refuses_the_file(self, url):
        with pytest.raises(ConfigError, match=re.escape("upstreams[0]")):
            applying.apply(reading.read(MINIMAL.replace("https://api.openai.com/v1", url)))
        assert not Upstream.objects.exists()

    @pytest.mark.parametrize("url", BAD_URLS)
    def test_k01_is_an_error_of_the_form(self, root, url):
        answer = root.post("/admin/proxy/upstream/add/", upstream_form(base_url=url))

        assert answer.status_code == 200
        assert "base URL" in answer.content.decode()
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
    def test_k01_tells_which_url_is_meant_where_one_names_the_endpoint(
        self, root, dialect, url, right
    ):
        told = f"base URL {url!r} names the endpoint, which is appended to it; write {right!r}"
        file = MINIMAL.replace('"responses"', f'"{dialect}"')
        file = file.replace("https://api.openai.com/v1", url)
        row = {"name": "vllm", "dialect": dialect, "base_url": url}

        form = root.post("/admin/proxy/upstream/add/", upstream_form(base_url=url, dialect=dialect))
        api = root.post("/api/v1/upstreams", row, content_type="application/json")

        assert told in html.unescape(form.content.decode())
        assert (api.status_code, api.json()["error"]["message"]) == (400, f"base_url: {told}")
        with pytest.raises(ConfigError) as refusal:
            applying.apply(reading.read(file))
        assert str(refusal.value) == f"upstreams[0].base_url: {told}"
        assert not Upstream.objects.exists()


class TestK02:
    """The key of an upstream that is used is nowhere."""

    def test_k02_names_the_variable_and_no_value(self, manage, tmp_path, toml):
        (tmp_path / "bridge.toml").write_text(toml)
        run = manage(
            "serve", "--port", "0", "--config", tmp_path / "bridge.toml", BRIDGE_KEY_CI=SECRET
        )

        assert run.returncode == 2
        assert "upstream 'openai': environment variable OPENAI_API_KEY is missing" in run.stderr
        assert SECRET not in run.stdout + run.stderr

    @pytest.mark.django_db
    def test_k02_breaks_that_upstream_alone_when_it_goes_missing_later(self, monkeypatch):
        from proxy.gateway.directory import load_snapshot

        Upstream.objects.create(
            name="gone", dialect="chat", base_url="https://a.example", secret={"env": "K02_GONE"}
        )
        Upstream.objects.create(name="free", dialect="chat", base_url="https://b.example")
        monkeypatch.delenv("K02_GONE", raising=False)

        assert dict(load_snapshot().broken) == {
            "gone": "environment variable K02_GONE is missing or empty"
        }


class TestK03:
    """A model is named twice; a route leads to nothing."""

    TWICE = MINIMAL + '[[routes]]\nmodel = "claude-*"\ntargets = [{ upstream = "openai" }]\n'
    NOTHING = MINIMAL.replace('targets = [{ upstream = "openai" }]', "targets = []")
    MISSPELT = MINIMAL.replace('{ upstream = "openai" }', '{ upstream = "opnai" }')

    def test_k03_refuses_the_start(self, manage, tmp_path):
        told = refused(manage, tmp_path, self.TWICE)

        assert "routes[0] and routes[1] are both 'claude-*'" in told

    @pytest.mark.django_db
    @pytest.mark.parametrize(
        ("toml", "told"),
        [
            (TWICE, ["routes[0] and routes[1]", "'claude-*'"]),
            (NOTHING, ["routes[0].targets"]),
            (MISSPELT, ["routes[0].targets[0].upstream", "'opnai'", "did you mean 'openai'"]),
            (MINIMAL.replace("[[routes]]", '[[routes]]\nteam = "nobody"'),
             ["routes[0].team", "'nobody'"]),
            (MINIMAL + MINIMAL.partition("[[routes]]")[0],
             ["upstreams[0] and upstreams[1]", "'openai'"]),
        ],
    )  # fmt: skip
    def test_k03_names_both_sides_of_the_file(self, toml, told):
        with pytest.raises(ConfigError) as refusal:
            applying.apply(reading.read(toml))

        assert [word for word in told if word not in str(refusal.value)] == []
        assert not Route.objects.exists()
        assert not Upstream.objects.exists()

    def test_k03_names_both_sides_on_the_form(self, root):
        upstream = Upstream.objects.create(
            name="vllm", dialect="chat", base_url="https://a.example"
        )
        route = Route.objects.create(model="claude-*", position=7, managed=True)
        RouteTarget.objects.create(route=route, upstream=upstream)

        twice = root.post("/admin/proxy/route/add/", route_form(upstream.pk)).content.decode()
        nothing = root.post("/admin/proxy/route/add/", route_form(model="gpt-*")).content.decode()
        nobody = root.post("/admin/proxy/route/add/", route_form(999, model="gpt-*"))

        assert "&#x27;claude-*&#x27; has a route for all teams already" in twice
        assert "the one at position 7, from bridge.toml" in twice
        assert "&#x27;gpt-*&#x27; leads to no upstream" in nothing
        assert "Select a valid choice" in nobody.content.decode()
        assert Route.objects.count() == 1

    def test_k03_a_sound_route_is_taken(self, root):
        upstream = Upstream.objects.create(
            name="vllm", dialect="chat", base_url="https://a.example"
        )
        answer = root.post("/admin/proxy/route/add/", route_form(upstream.pk))

        assert answer.status_code == 302, answer.content.decode()
        assert Route.objects.get().targets.get().upstream == upstream


class TestK04:
    """A setting that nobody knows."""

    def test_k04_of_the_environment(self, manage):
        run = manage("serve", "--port", "0", BRIDGE_DRAIN="3")

        assert run.returncode == 2
        assert "unknown setting BRIDGE_DRAIN; did you mean 'BRIDGE_DRAIN_S'?" in run.stderr

    @pytest.mark.django_db
    def test_k04_a_name_that_a_row_refers_to_is_free(self):
        Upstream.objects.create(
            name="a", dialect="chat", base_url="https://a.example", secret={"env": "BRIDGE_OWN"}
        )

        variables.check_early({"BRIDGE_OWN": "x"}, None)
        with pytest.raises(ConfigError, match="unknown setting BRIDGE_OWNN"):
            variables.check_early({"BRIDGE_OWN": "x", "BRIDGE_OWNN": "x"}, None)

    def test_k04_of_the_file(self, manage, tmp_path):
        told = refused(manage, tmp_path, MINIMAL.replace("base_url", "base_ulr"))

        assert "upstreams[0]: unknown key 'base_ulr'; did you mean 'base_url'?" in told

    @pytest.mark.parametrize(
        ("changed", "told"),
        [
            ({"timeouts": '{"idle": 5}'}, "unknown timeout &#x27;idle&#x27;; known: connect_s"),
            ({"capabilities": '{"no_such": true}'}, "no_such"),
            ({"profile": "gopher"}, "gopher"),
        ],
    )
    def test_k04_of_the_form(self, root, changed, told):
        answer = root.post("/admin/proxy/upstream/add/", upstream_form(**changed))

        assert told in answer.content.decode()
        assert not Upstream.objects.exists()


class TestExtraBody:
    """Fields for every request that would make it another one than the record tells."""

    @pytest.mark.parametrize(
        ("extra", "told"),
        [
            ({"model": "gpt-9"}, "'model' is 'gpt-9'; the route's targets name the model"),
            ({"a": 1, "stream": False}, "'stream' is False; the gateway says what is streamed"),
        ],
    )
    def test_it_is_refused_by_file_form_and_api(self, root, extra, told):
        toml = ", ".join(f"{name} = {json.dumps(value)}" for name, value in extra.items())
        file = MINIMAL.replace("[[routes]]", f"extra_body = {{ {toml} }}\n[[routes]]")
        row = {"name": "vllm", "dialect": "chat", "base_url": "https://a.example"}

        page = upstream_form(extra_body=json.dumps(extra))
        form = root.post("/admin/proxy/upstream/add/", page)
        api = root.post(
            "/api/v1/upstreams", row | {"extra_body": extra}, content_type="application/json"
        )

        assert told in html.unescape(form.content.decode())
        assert api.status_code == 400
        assert api.json()["error"]["message"].startswith(f"extra_body: {told}")
        with pytest.raises(ConfigError, match=re.escape(f"upstreams[0].extra_body: {told}")):
            applying.apply(reading.read(file))
        assert not Upstream.objects.exists()

    @pytest.mark.parametrize("field", ["capabilities", "timeouts", "extra_body"])
    def test_a_form_takes_objects_only(self, root, field):
        answer = root.post("/admin/proxy/upstream/add/", upstream_form(**{field: "[1]"}))

        assert "an object is expected, found [1]" in answer.content.decode()
        assert not Upstream.objects.exists()


class TestK06:
    """What must not meet a network."""

    @pytest.mark.parametrize(
        ("environment", "arguments", "told"),
        [
            ({"BRIDGE_DEBUG": "1"}, (), "proxy.E010"),
            ({"BRIDGE_SECRET_KEY": "changeme"}, (), "BRIDGE_SECRET_KEY is too weak"),
            ({"BRIDGE_ALLOWED_HOSTS": "*"}, ("--host", "0.0.0.0"), "proxy.E011"),  # noqa: S104
        ],
    )
    def test_k06_refuses_the_start(self, manage, environment, arguments, told):
        run = manage("serve", "--port", "0", *arguments, **environment)

        assert run.returncode == 2, run.stderr
        assert told in run.stderr
        assert "changeme" not in run.stderr


class TestK07:
    """A wrong file at SIGHUP, a wrong form: the old configuration stays, and it is told."""

    @pytest.mark.django_db(transaction=True)
    def test_k07_a_reload_that_is_wrong_in_its_last_line_changes_nothing(self, tmp_path, caplog):
        file = tmp_path / "bridge.toml"
        file.write_text(MINIMAL)
        reloading.Reloader(file).reload()
        before = [*Upstream.objects.values(), *Route.objects.values(), *Team.objects.values()]
        file.write_text(
            MINIMAL.replace("api.openai.com", "elsewhere.example")
            + '[[teams]]\nname = "new"\n[[budgets]]\nteam = "nwe"\nusd = "1"\n'
        )

        reloading.Reloader(file).reload()

        assert [
            *Upstream.objects.values(),
            *Route.objects.values(),
            *Team.objects.values(),
        ] == before
        (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert "the old configuration stays" in told
        assert "budgets[0].team: no team 'nwe'; did you mean 'new'?" in told

    def test_k07_a_wrong_form_leaves_the_row(self, root):
        upstream = Upstream.objects.create(
            name="vllm", dialect="chat", base_url="https://a.example"
        )
        page = f"/admin/proxy/upstream/{upstream.pk}/change/"
        answer = root.post(page, upstream_form(base_url="ftp://a.example", profile="openai"))

        assert answer.status_code == 200
        upstream.refresh_from_db()
        assert (upstream.base_url, upstream.profile) == ("https://a.example", "generic")

    def test_k07_a_price_in_force_is_not_overwritten(self, root):
        from django.utils.timezone import now

        Price.objects.create(model="m", since=now().date(), input=1, output=1)
        toml = f'[[prices]]\nmodel = "m"\nsince = {now().date()}\nusd = {{ input = "2", output = "1" }}\n'

        with pytest.raises(ConfigError, match="in force and never overwritten"):
            applying.apply(reading.read(toml))
        assert Price.objects.get().input == 1
