"""``doctor`` finds what is wrong, says what to do, and leaves what is right alone."""

import http.server
import json
import socket
import threading

import pytest
from django.core.management import CommandError, call_command

from proxy.config.doctor import examine
from proxy.models import ApiKey, Price, Route, RouteTarget, Team, Upstream
from proxy.sandbox.server import free_socket, running
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db


class Buffering(http.server.BaseHTTPRequestHandler):
    """An upstream behind something that collects the whole stream before it lets it go."""

    def do_GET(self):
        self.send_response_only(401)  # with a clock of its own
        self.send_header("content-length", "0")
        self.send_header("date", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()

    def do_POST(self):
        body = b'data: {"n": 1}\n\n' * 50
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def buffering():
    server = http.server.HTTPServer(("127.0.0.1", 0), Buffering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def sandbox():
    with running(free_socket(0)) as base_url:
        yield base_url


def route_to(base_url, *, dialect="responses", model="sandbox-text", **fields):
    upstream = Upstream.objects.create(name="own", dialect=dialect, base_url=base_url, **fields)
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream, model=model)
    Price.objects.create(model=model, since="2026-01-01", input=1, output=1)


def findings(subject, **options):
    return [finding for finding in examine(**options) if finding.subject == subject]


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_a_good_upstream_is_reachable_and_streams(sandbox, dialect):
    route_to(sandbox, dialect=dialect)

    reachable, streamed = findings("upstream own")

    assert (reachable.ok, streamed.ok) == (True, True)
    assert "reads over" in streamed.says


def test_a_buffering_upstream_a_refused_key_and_a_wrong_clock_are_found(buffering):
    route_to(buffering)

    reachable, streamed = findings("upstream own")
    (clock,) = findings("clock")

    assert (reachable.ok, reachable.hint) == (False, "The key is refused; see api_key.")
    assert streamed.ok is False
    assert "buffers" in streamed.hint
    assert clock.ok is False


def test_an_upstream_that_is_not_there_is_one_finding():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and kept, so that nobody else is given it
        route_to(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")

        (finding,) = findings("upstream own")

    assert finding.ok is False
    assert "cannot be reached" in finding.says


def test_a_missing_key_is_named_and_never_asked_for_elsewhere():
    route_to("https://api.openai.com/v1", secret={"env": "NOT_SET_ANYWHERE"})

    (finding,) = findings("upstream own")

    assert "NOT_SET_ANYWHERE" in finding.says


def test_a_model_without_a_price_is_found(sandbox):
    route_to(sandbox)
    Price.objects.all().delete()

    (finding,) = findings("price", stream=False)

    assert "sandbox-text of own has none" in finding.says


def test_a_cache_hit_that_is_dearer_than_a_miss_is_found():
    usual = {"model": "m", "since": "2026-01-01", "output": 8}
    Price.objects.create(**usual, input="0.5", cache_read="5")
    Price.objects.create(**usual | {"model": "n"}, input=5, cache_read="0.5")

    (finding,) = findings("price", stream=False)

    assert finding.ok is False
    assert finding.says == "m of any: a hit costs more than fresh input"


def test_each_route_is_told_with_its_translation():
    team = Team.objects.create(name="research")
    chat = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://v", profile="vllm")
    claude = Upstream.objects.create(
        name="claude", dialect="anthropic", base_url="https://a.example", profile="anthropic"
    )
    off = Upstream.objects.create(name="off", dialect="chat", base_url="http://off", enabled=False)
    both, none = (Route.objects.create(model=name) for name in ("claude-*", "gone"))
    own = Route.objects.create(model="x", team=team)
    for place, (route, upstream, model) in enumerate(
        [(both, chat, "qwen3"), (both, claude, ""), (none, off, "m"), (own, chat, "y")]
    ):
        route.targets.create(upstream=upstream, model=model, position=place)

    told = {one.subject: (one.ok, one.says) for one in examine(stream=False)}

    assert told["route claude-*"][0] is None
    assert told["route claude-*"][1].split("; else ") == [
        "vllm as qwen3, by Chat Completions, profile vllm",
        "claude under the name that was asked for, untranslated, profile anthropic",
    ]
    assert told["route gone"] == (False, "leads nowhere")
    assert told["route x of team research"][0] is None


def test_traffic_tells_whether_clients_arrive():
    (before,) = findings("traffic", stream=False)
    cast.record(opening={"client_name": "claude-cli", "client_version": "2.1.9"})

    (after,) = findings("traffic", stream=False)

    assert before.says == "no request has arrived yet"
    assert (before.ok, after.ok) == (None, None)
    assert "UTC from claude-cli 2.1.9 of platform/" in after.says


def test_what_is_set_is_told_with_its_source_and_no_secret(monkeypatch):
    monkeypatch.setenv("BRIDGE_WORKERS", "3")
    monkeypatch.setenv("BRIDGE_SECRET_KEY", "hush-hush")
    monkeypatch.setenv("DATABASE_URL_FILE", "/run/secrets/database")

    told = {one.subject: one.says for one in examine(stream=False)}

    assert told["setting BRIDGE_WORKERS"] == "'3', from the environment"
    assert told["setting BRIDGE_SECRET_KEY"] == "set, from the environment"
    assert told["setting DATABASE_URL_FILE"] == "'/run/secrets/database', from the environment"
    assert "hush" not in str(told)


def test_an_installation_without_routes_is_told_so():
    (finding,) = findings("routes")

    assert finding.ok is False


def test_the_command_ends_with_1_when_there_is_something_to_mend(capsys):
    with pytest.raises(CommandError) as caught:
        call_command("doctor", "--json")

    told = json.loads(capsys.readouterr().out)
    assert caught.value.returncode == 1
    assert {"subject", "ok", "says", "hint"} == set(told[0])


def test_the_command_prints_what_a_client_needs(capsys):
    with pytest.raises(CommandError):
        call_command("doctor", "--url", "https://bridge.example.com")

    assert "ANTHROPIC_BASE_URL=https://bridge.example.com" in capsys.readouterr().out


def test_a_key_without_a_secret_is_found_with_its_remedy():
    key, _ = cast.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(prefix="", digest=None)
    revoked, _ = cast.key("ended")
    ApiKey.objects.filter(pk=revoked.pk).update(prefix="", digest=None, revoked=key.created)

    (found,) = [one for one in examine() if one.subject.startswith("key ")]

    assert (found.subject, found.ok) == ("key platform/ci", False)
    assert found.hint == "manage.py createkey --team platform --name ci gives it one."
