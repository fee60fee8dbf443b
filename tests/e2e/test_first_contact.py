"""A newcomer's first five minutes: start, paste the curl line, open the admin, read it there."""

import html
import http.cookiejar
import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request

import pytest

from tests.fakes.gateway import Gateway
from tests.fakes.grammar import faults_of_bytes, read_frames

NO_PROVIDER = {"PATH": os.environ.get("PATH", "")}  # and so no OPENAI_API_KEY


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """``manage.py serve`` with no configuration at all, on a fresh data directory."""
    with Gateway(tmp_path_factory.mktemp("fresh"), key="") as running:
        yield running


@pytest.fixture(scope="module")
def streamed(fresh) -> bytes:
    """What the printed curl line shows, pasted into a shell."""
    (line,) = re.findall(r"^\s*(curl .*)$", fresh.log, re.MULTILINE)
    pasted = ["/bin/sh", "-c", f"{line} --silent --show-error --max-time 90"]
    return subprocess.run(pasted, env=NO_PROVIDER, capture_output=True, check=True).stdout  # noqa: S603 - the very line


class Browser:
    """As much of a browser as Django's admin needs: cookies, forms, redirects."""

    def __init__(self) -> None:
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def get(self, url: str) -> str:
        with self._opener.open(url, timeout=90) as answer:
            return answer.read().decode()

    def log_in(self, url: str, user: str, password: str) -> str:
        form = self.get(url)
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)[:1]
        fields = {"username": user, "password": password, "csrfmiddlewaretoken": token}
        raw = urllib.parse.urlencode(fields | {"next": "/admin/"}).encode()
        login = urllib.parse.urljoin(url, "/admin/login/")
        request = urllib.request.Request(login, raw, {"referer": login})  # noqa: S310 - loopback
        with self._opener.open(request, timeout=90) as answer:
            return answer.read().decode()


def words_in(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def said_in(raw: bytes) -> str:
    frames, _ = read_frames(raw)
    deltas = [frame.body["delta"] for frame in frames if frame.name == "content_block_delta"]
    return "".join(delta.get("text", "") for delta in deltas)


def test_the_printed_curl_line_streams_a_real_translated_answer(streamed):
    assert faults_of_bytes(streamed) == []
    assert said_in(streamed)


def test_the_sandbox_says_that_it_is_one(fresh):
    assert "SANDBOX" in fresh.log


def test_the_printed_admin_login_shows_that_conversation(fresh, streamed):
    ((link, user, password),) = re.findall(
        r"(http://\S+/admin/).*?user (\S+), password (\S+)", fresh.log, re.DOTALL
    )
    browser = Browser()

    home = browser.log_in(link, user, password)

    assert "Log out" in home
    lists = [
        urllib.parse.urljoin(link, path)
        for path in re.findall(r'href="(/admin/proxy/exchange/)"', home)
    ]
    assert lists, words_in(home)
    page = conversation_in(browser, lists[0])
    assert "Hello" in words_in(page)
    assert " ".join(said_in(streamed).split()) in words_in(page)


def conversation_in(browser: Browser, changelist: str) -> str:
    """The first request of the list, as soon as the drainer has brought it there."""
    deadline = time.monotonic() + 90
    while not (
        links := re.findall(
            r'href="(/admin/proxy/exchange/[^"/?]+/(?:change|view)?/?)"', browser.get(changelist)
        )
    ):
        assert time.monotonic() < deadline, "the request never appeared in the admin"
        time.sleep(0.1)
    return browser.get(urllib.parse.urljoin(changelist, links[0]))


def test_a_human_at_the_root_is_shown_the_next_steps(fresh):
    reply = fresh.ask("GET", "/", headers={"accept": "text/html"})

    assert reply.status == 200
    assert fresh.ask("HEAD", "/").status == 200
    assert fresh.ask("GET", "/healthz").status == 200


def test_the_data_directory_is_private_and_a_second_start_tells_no_secret(tmp_path):
    once = Gateway(tmp_path, key="")
    with once:
        secrets = re.findall(r"sk-br-[A-Za-z0-9_-]{20,}", once.log)
        (key, *_) = secrets
        first = once.log
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0

    with once:
        again = once.log.removeprefix(first)

    assert secrets
    assert key not in again
    assert "password" not in again
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path


AGENT = [
    {"name": name, "input_schema": {"type": "object", "properties": {}}}
    for name in ("Agent", "Bash", "Edit", "Glob", "Read", "Write", "WebFetch", "TodoWrite")
]
"""The tools of a coding agent, in its order."""


@pytest.mark.parametrize("model", ["claude-sonnet-5-5", "sandbox-chat-agent"])
@pytest.mark.parametrize(
    ("prompt", "choice", "called"),
    [
        ("List the files of this folder.", "auto", []),
        ("Ask the Agent, then use Bash, Edit and Write.", "auto", []),
        ("Look with Read at the notes.", "auto", ["Read"]),
        ("Go on.", "any", ["Glob"]),
    ],
)
def test_an_agent_that_executes_each_call_comes_to_an_end(fresh, model, prompt, choice, called):
    """``Agent`` would start an agent with the same tools, and so on without an end."""
    executed, sent = [], 0
    pending = [[{"role": "user", "content": prompt}]]
    while pending and sent < 10:
        messages = pending.pop()
        body = {"model": model, "max_tokens": 1024, "messages": messages, "tools": AGENT}
        answer = message(fresh, body | {"tool_choice": {"type": choice}})
        sent += 1
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        assert answer["stop_reason"] == ("tool_use" if calls else "end_turn")
        executed += [call["name"] for call in calls]
        if calls:
            results = [
                {"type": "tool_result", "tool_use_id": call["id"], "content": "nothing"}
                for call in calls
            ]
            turn = {"role": "assistant", "content": answer["content"]}
            pending.append([*messages, turn, {"role": "user", "content": results}])

    assert (executed, sent) == (called, len(called) + 1)


def message(fresh: Gateway, body: dict) -> dict:
    (key, *_) = re.findall(r"sk-br-[A-Za-z0-9_-]{20,}", fresh.log)
    headers = {"x-api-key": key, "content-type": "application/json"}
    reply = fresh.ask("POST", "/v1/messages", json.dumps(body).encode(), headers)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)
