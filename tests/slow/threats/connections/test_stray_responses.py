"""A stray response (one without a request) reaches no client and shifts no other response.

The gateway is a separate process with the event loop of production. Each case has its own origin,
because the gateway stops reusing connections of an origin that sent a stray response.
"""

import contextlib
import json
import select
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from proxy.gateway.upstream.connections import ConnectionPool
from proxy.models import Route, Upstream
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import Send, Sleep, WaitForGate, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message
from tests.waiting import until

OTHER_KEY = "sk-br-" + "07e4" * 12
REUSE = {"key": "key", "never": "never"}
TLS = ("tls-idle", "tls-early", "tls-fresh")
CASES = (
    "idle", "tls-idle", "leftover-0", "leftover-1", "leftover-2", "early", "tls-early", "fresh",
    "tls-fresh", "shared", "key", "never",
)  # fmt: skip
ROUTE = '[[routes]]\nmodel = "{0}-*"\ntargets = [{{ upstream = "{0}" }}]\n'
KEY = '[[keys]]\nteam = "e2e"\nname = "other"\nsecret = { env = "BRIDGE_KEY_OTHER" }\n'
MEGABYTES = 16
"""Size of a request: larger than the kernel buffers of both sides."""


def completion(text):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {**upstream_scripts.COMPLETION, "choices": [choice]}


def raw(text, status=200):
    return b"".join(step.raw for step in json_response(completion(text), status))


STRAY = raw("a stray response")


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory):
    authority = trustme.CA()
    bundle = tmp_path_factory.mktemp("authority") / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    context = trustme_context(authority)
    with contextlib.ExitStack() as stack:
        upstreams_by_name = {
            name: stack.enter_context(ScriptedUpstream(tls=context if name in TLS else None))
            for name in CASES
        }
        yield upstreams_by_name, str(bundle)


def trustme_context(authority):

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def process(upstreams, tmp_path_factory):
    upstreams_by_name, bundle = upstreams
    config = toml_for(
        {
            name: {
                "dialect": "chat",
                "base_url": f"http{'s' if name in TLS else ''}://127.0.0.1:{scripted.port}/v1",
                "connection_reuse": REUSE.get(name, "shared"),
            }
            for name, scripted in upstreams_by_name.items()
        },
        "".join(map(ROUTE.format, upstreams_by_name)) + KEY,
    )
    environment = {"SSL_CERT_FILE": bundle, "BRIDGE_KEY_OTHER": OTHER_KEY}
    with Gateway(tmp_path_factory.mktemp("gateway"), config, environment) as running:
        yield running


@pytest.fixture
def upstream(upstreams):
    return lambda name: upstreams[0][name]


def post(process, model, text="hello", key=None):
    body = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    headers = {"x-api-key": key} if key else {}
    return process.request("POST", "/v1/messages", json.dumps(body).encode(), headers)


def response_text(reply):
    assert reply.status == 200, reply
    return json.loads(reply.body)["content"][0]["text"]


def counts(process, counter, name, label):
    """Return one of the gateway's counters of an upstream, by the values of another label."""
    text = process.request("GET", "/metrics").body.decode()
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"bridge_upstream_{counter}_total" and sample.labels["upstream"] == name
    }


def strays(process, name):
    """Return the counted stray responses; the value may be a second old."""
    return counts(process, "stray_responses", name, "when")


@pytest.mark.parametrize("name", ["idle", "tls-idle"])
def test_bytes_on_an_idle_connection_close_it_and_stop_reuse_for_its_origin(
    process, upstream, name
):
    scripted, gate = upstream(name), threading.Event()
    scripted.on(f"{name}-1", [*json_response(completion("first")), WaitForGate(gate), Send(STRAY)])
    scripted.on(f"{name}-2", json_response(completion("second")))

    assert response_text(post(process, f"{name}-1")) == "first"
    gate.set()
    until(lambda: not scripted.open_connections)
    until(lambda: strays(process, name) == {"idle": 1})
    assert [response_text(post(process, f"{name}-2")) for _ in range(3)] == ["second"] * 3

    assert [each.connection for each in scripted.requests] == [0, 1, 2, 3]
    assert process.log.count(f"upstream {name} sent bytes that no request had asked for") == 1


@pytest.mark.parametrize(
    ("n", "extra"),
    [(0, STRAY), pytest.param(1, b"HTTP/1.1 2", marks=pytest.mark.slow), (2, b"}")],
)
def test_bytes_after_a_complete_response_close_the_connection(process, upstream, n, extra):
    """The third case is what a too small content-length leaves."""
    name = f"leftover-{n}"
    scripted = upstream(name)
    scripted.on(f"{name}-1", [Send(raw("first") + extra)])
    scripted.on(f"{name}-2", json_response(completion("second")))

    assert response_text(post(process, f"{name}-1")) == "first"
    assert response_text(post(process, f"{name}-2")) == "second"

    assert [each.connection for each in scripted.requests] == [0, 1]
    until(lambda: strays(process, name) == {"after_response": 1})


@pytest.mark.parametrize("name", ["early", pytest.param("tls-early", marks=pytest.mark.slow)])
def test_response_before_the_complete_request_on_a_reused_connection_is_dropped(
    process, upstream, name
):
    """The gateway resends the request on a new connection, because the first send was incomplete."""
    scripted = upstream(name)
    scripted.on(f"{name}-1", json_response(completion("first")))
    scripted.on(f"{name}-2", json_response(completion("second")))
    scripted.early_response = lambda number, headers: (
        STRAY if number == 0 and int(headers["content-length"]) > 2**20 else b""
    )

    assert response_text(post(process, f"{name}-1")) == "first"
    assert response_text(post(process, f"{name}-2", "x" * MEGABYTES * 2**20)) == "second"

    assert [each.connection for each in scripted.requests] == [0, 1]
    until(lambda: strays(process, name) == {"before_request_sent": 1})
    until(lambda: counts(process, "attempts", name, "status") == {"0": 1, "200": 2})


@pytest.mark.parametrize("name", ["fresh", pytest.param("tls-fresh", marks=pytest.mark.slow)])
def test_response_before_the_complete_request_on_a_new_connection_is_accepted(
    process, upstream, name
):
    """Servers reject large requests this way; the connection is not reused."""
    scripted = upstream(name)
    scripted.early_response = lambda number, _: raw("too large", 413) if number == 0 else b""
    scripted.on(f"{name}-1", json_response(completion("second")))

    assert post(process, f"{name}-1", "x" * MEGABYTES * 2**20).status == 413
    assert response_text(post(process, f"{name}-1")) == "second"

    assert [each.connection for each in scripted.requests] == [1]
    until(lambda: counts(process, "attempts", name, "status") == {"413": 1, "200": 1})
    assert strays(process, name) == {}


@pytest.mark.parametrize(
    ("name", "connections"),
    [("shared", [0, 0, 0, 0]), ("key", [0, 1, 0, 1]), ("never", [0, 1, 2, 3])],
)
def test_connection_reuse_setting_decides_which_requests_share_a_connection(
    process, upstream, name, connections
):
    scripted = upstream(name)
    scripted.on(f"{name}-1", json_response(completion("hello")))

    for key in (process.key, OTHER_KEY) * 2:
        assert response_text(post(process, f"{name}-1", key=key)) == "hello"

    assert [each.connection for each in scripted.requests] == connections


def test_undetectable_stray_response_stays_within_its_key(process, upstream):
    """The upstream sends the stray response first, so each real response goes to the next request."""
    scripted = upstream("key")
    scripted.choose(lambda body: [Send(STRAY), Sleep(0.2), Send(raw("genuine"))]
               if "shift" in body.model else json_response(completion("other")))  # fmt: skip

    first = post(process, "key-shift")
    with ThreadPoolExecutor(8) as pool:
        others = list(pool.map(lambda _: post(process, "key-2", key=OTHER_KEY), range(24)))

    assert response_text(first) == "a stray response"  # the bytes do not show the shift
    assert {response_text(reply) for reply in others} == {"other"}


def test_unread_bytes_are_detected_before_a_connection_is_reused(
    gateway, world, reload, monkeypatch
):
    """The gateway runs in this process, so that the test controls when the stray response arrives."""
    gate, readable_sockets = threading.Event(), []
    find = ConnectionPool.acquire_idle

    def late_stray(pool, origin, *owner):
        """Let the stray response arrive between the event loop's last read and this reuse."""
        if origin.port == scripted.port and (waiting := pool._idle.get((origin, *owner))):
            gate.set()
            socket = waiting[-1][1]._tcp.get_extra_info("socket")
            readable_sockets.append(select.select([socket.fileno()], [], [], 60)[0])
        return find(pool, origin, *owner)

    # The bytes must arrive between two steps of the pool.
    monkeypatch.setattr(ConnectionPool, "acquire_idle", late_stray)
    with ScriptedUpstream() as scripted:
        row = add_upstream("late", "chat", scripted.base_url)
        add_route("late-*", row)
        reload()
        scripted.on("late-1", [*json_response(completion("first")), WaitForGate(gate), Send(STRAY)])
        scripted.on("late-2", json_response(completion("second")))
        try:
            replies = [gateway.post(message(f"late-{n}")) for n in (1, 2)]
            until(
                lambda: scripted.open_connections == 0
            )  # both are closed, the first with the stray response
        finally:
            Route.objects.filter(model="late-*").delete()
            Upstream.objects.filter(name="late").delete()
            reload()

    assert [reply.json["content"][0]["text"] for reply in replies] == ["first", "second"]
    assert len(readable_sockets) == 1
    assert readable_sockets[0]  # the stray response had arrived
    assert [each.connection for each in scripted.requests] == [0, 1]
