"""Reading a bridge.toml: every error names its path, with a suggestion."""

import contextlib

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.apply import apply
from proxy.config.load import (
    MAX_BYTES,
    STARTER_PRICES,
    read,
    read_draft,
    read_file,
    starter_prices,
)
from proxy.decode_errors import did_you_mean
from proxy.models import Price, Team
from proxy.secrets import ConfigError
from tests.for_each import for_each

from .conftest import BRIDGE_TOML

UPSTREAM = '[[upstreams]]\nname = "a"\ndialect = "chat"\nbase_url = "https://a.example"\n'
PRICE = '[[prices]]\nmodel = "m"\nsince = 2026-01-01\n'
KEY = '[[keys]]\nteam = "t"\nname = "k"\n'

# name: (text, part of the error); limits and options are in ../test_columns.py
ERRORS = {
    "no TOML": ("[[upstreams", "not valid TOML"),
    "unknown table": ("[[upstream]]\n", "unknown key 'upstream'; did you mean 'upstreams'?"),
    "unknown key": (UPSTREAM + "bas_url = 1", "upstreams[0]: unknown key 'bas_url'"),
    "key of a target": (
        '[[routes]]\nmodel = "m"\ntargets = [{ upstream = "a", modle = "x" }]',
        "routes[0].targets[0]: unknown key 'modle'; did you mean 'model'?",
    ),
    "timeout": (
        UPSTREAM + "timeouts = { idel_s = 5 }",
        "timeouts: unknown key 'idel_s'; did you mean 'idle_s'?",
    ),
    "when a client leaves": (
        UPSTREAM + 'when_client_leaves = "estimate"',
        'when_client_leaves: "estimate" is not a valid choice; known: abort, drain',
    ),
    "connection reuse": (
        UPSTREAM + 'connection_reuse = "user"',
        'connection_reuse: "user" is not a valid choice; known: shared, key, never',
    ),
    "connection": (
        UPSTREAM + 'connection = { prxy = "http://p:1" }',
        "connection: unknown key 'prxy'; did you mean 'proxy'?",
    ),
    "dialect": (
        UPSTREAM.replace("chat", "gopher"),
        'dialect: "gopher" is not a valid choice; known: responses, chat, anthropic',
    ),
    "missing": (
        '[[upstreams]]\nname = "a"\ndialect = "chat"',
        "upstreams[0].base_url: This field is required",
    ),
    "type": (
        '[[teams]]\nname = "t"\nretention_days = "90"',
        "teams[0].retention_days: Expected int, got str, found '90'",
    ),
    "scope": (
        KEY + 'scopes = ["messages", "raports"]',
        (
            "scopes[1]: Invalid enum value 'raports'; expected one of 'messages', 'reports', "
            "'reports:read', 'transcripts:read', 'keys:write', 'config:write', 'admin'"
        ),
    ),
    "word for a date": (
        '[[prices]]\nmodel = "m"\nsince = "May"\nusd = { input = "1", output = "1" }',
        "prices[0].since: a date is written 2026-01-01, without quotes, found 'May'",
    ),
    "name with a blank": (
        UPSTREAM.replace('"a"', '"my server"'),
        "letters, numbers, underscores or hyphens, found 'my server'",
    ),
    "no targets": ('[[routes]]\nmodel = "m"\ntargets = []', "routes[0].targets"),
    "negative price": (
        PRICE + 'usd = { input = "-1", output = "1" }',
        "prices[0].usd.input: Ensure this value is greater than or equal to 0, found '-1'",
    ),
    "no number": (
        PRICE + 'usd = { input = "NaN", output = "1" }',
        "prices[0].usd.input: A valid number is required, found 'NaN'",
    ),
    "too fine": (
        PRICE + 'usd = { input = "0.0000001", output = "1" }',
        "no more than 6 decimal places",
    ),
    "inline key": (
        UPSTREAM + 'api_key = "sk-live-123"',
        "upstreams[0].api_key: a secret is never written here",
    ),
    "both places": (
        KEY + 'secret = { env = "A", file = "/b" }',
        'keys[0].secret: a secret is { env = "NAME" }',
    ),
    "quoted date": (
        KEY + 'expires = "2027-01-01"',
        "keys[0].expires: a date is written 2027-01-01, without quotes",
    ),
    "zone": (
        '[[teams]]\nname = "t"\nbudgets = [{ usd = "5", zone = "Mars/Olympus" }]',
        "teams[0].budgets[0].zone: no such time zone: 'Mars/Olympus'",
    ),
    "upstream twice": (UPSTREAM * 2, "upstreams[0] and upstreams[1] are both 'a'"),
    "model twice": (
        '[[routes]]\nmodel = "m"\ntargets = [{ upstream = "a" }]\n' * 2,
        "routes[0] and routes[1] are both 'm'",
    ),
    "key twice": (KEY * 2, "keys[0] and keys[1] are both 't/k'"),
}


@for_each("name", ERRORS)
def test_an_error_names_its_path(name):
    text, expected = ERRORS[name]

    with pytest.raises(ConfigError) as caught:
        read(text)

    assert expected in str(caught.value)


@for_each(
    "text",
    [
        UPSTREAM + 'api_key = "sk-live-123"',
        UPSTREAM + 'api_key = { env = 5, file = "sk-live-123" }',
        KEY + 'secret = "sk-live-123"',
        '[[webhooks]]\nname = "w"\nurl = "https://x.example"\nsecret = "sk-live-123"',
        '[[webhooks]]\nname = "w"\nurl = "https://x.example"\nprevious_secret = "sk-live-123"',
    ],
)
def test_an_inline_secret_is_not_repeated_in_the_error(text):
    with pytest.raises(ConfigError) as caught:
        read(text)

    assert "sk-live-123" not in str(caught.value)


def test_the_example_of_the_docs_is_read(toml):
    file = read(toml)

    assert [upstream["name"] for upstream in file.upstreams] == ["openai", "vllm"]
    assert file.keys[0]["expires"].isoformat() == "2027-01-01T00:00:00+00:00"
    assert file.routes[0]["targets"][1]["weight"] == 1


def test_the_example_in_the_start_page_is_read(repository_page):
    file = read(repository_page)

    assert file.upstreams
    assert file.routes
    assert file.keys


@pytest.fixture
def repository_page():
    """Return the TOML example of docs/start.md."""
    from tests.fakes.forked_python import REPOSITORY

    page = (REPOSITORY / "docs/start.md").read_text(encoding="utf-8")
    return page.split("```toml\n")[1].split("```")[0]


def test_the_prices_of_the_package_are_a_bridge_toml():
    read = [{**entry.values} for entry in read_file(STARTER_PRICES).prices]

    assert [{**Price(**one).__dict__, "_state": 0} for one in read] == [
        {**Price(**one).__dict__, "_state": 0} for one in starter_prices()
    ]


def test_a_missing_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_file(tmp_path / "none.toml")


def test_a_word_without_a_similar_one_gets_the_list():
    assert did_you_mean("zzz", ["rpm", "tpm"]) == "; known: rpm, tpm"
    assert did_you_mean("nope", ["openai"]) == "; known: openai"


def test_of_a_very_long_word_the_beginning_is_compared_and_shown():
    """Comparing all of it takes the time of its length with each known word."""
    word = "upstream_" * 400_000
    assert did_you_mean(word, ["upstream_" * 11]) == f"; did you mean {'upstream_' * 11!r}?"
    for text in (f"{word} = 1", f"{UPSTREAM}{word} = 1", f"{UPSTREAM}timeouts = {{ {word} = 1 }}"):
        assert len(str(read_draft(text).mistakes)) < 1_000


LINES = BRIDGE_TOML.splitlines()


@given(st.data())
def test_a_damaged_file_raises_nothing_but_a_config_error(data):
    """Law: a file with dropped, doubled or cut lines is read or raises ConfigError."""
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(0, max(0, len(lines[at]) - 1)))
        lines[at : at + 1] = data.draw(
            st.sampled_from([[], [lines[at]] * 2, [lines[at][:cut]], [lines[at] + '"x'], ["x = 1"]])
        ) or [""]

    with contextlib.suppress(ConfigError):  # any other exception fails the law
        read("\n".join(lines))


def test_a_file_above_the_size_limit_is_not_read(tmp_path):
    path = tmp_path / "bridge.toml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))

    with pytest.raises(ConfigError, match=f"{MAX_BYTES + 1} bytes are too many"):
        read_file(path)


def test_a_file_that_is_nested_too_deeply_is_rejected():
    with pytest.raises(ConfigError, match="nested too deeply"):
        read("x = " + "[" * 100_000)


SHAPE = """
[[upstreams]]
name = "openai"
dialect = "respones"
base_url = 5
timeout = 3

[[upstreams]]
name = "vllm"
dialect = "chat"

[[routes]]
model = "claude-*"
targets = [{ upstream = "openai" }, { upstraem = "vllm", weight = -1 }]

[[teams]]
name = "platform"
retention_days = "x"
budgets = [{ usd = "-1" }]
"""
REFERENCES = """
[[upstreams]]
name = "openai"
dialect = "responses"
base_url = "api.openai.com"

[[upstreams]]
name = "vllm"
dialect = "chat"
base_url = "https://u:p@vllm.example"

[[routes]]
model = "claude-*"
targets = [{ upstream = "openai" }]

[[routes]]
model = "gpt-*"
targets = [{ upstream = "opena" }]

[[teams]]
name = "platform"

[[keys]]
team = "platfrom"
name = "ci"
budgets = [{ usd = "5" }]

[[budgets]]
user = "ada"
usd = "5"
"""


def mistakes(error: ConfigError) -> list[str]:
    count, *lines = str(error).splitlines()
    assert count == f"{len(lines)} mistakes:"
    return [line.strip() for line in lines]


def test_all_wrong_values_are_reported_with_path_value_and_what_is_right():
    with pytest.raises(ConfigError) as caught:
        read(SHAPE)

    assert mistakes(caught.value) == [
        'upstreams[0].dialect: "respones" is not a valid choice; known: responses, chat, anthropic',
        "upstreams[0].base_url: Expected str, got int, found 5",
        "upstreams[0]: unknown key 'timeout'; did you mean 'timeouts'?",
        "upstreams[1].base_url: This field is required",
        "routes[0].targets[1].upstream: This field is required",
        "routes[0].targets[1].weight: -1 is too small; the minimum is 0",
        "routes[0].targets[1]: unknown key 'upstraem'; did you mean 'upstream'?",
        "teams[0].retention_days: Expected int, got str, found 'x'",
        "teams[0].budgets[0].usd: Ensure this value is greater than or equal to 0, found '-1'",
    ]


@pytest.mark.django_db
def test_all_wrong_references_are_reported_but_not_what_follows_from_them():
    with pytest.raises(ConfigError) as caught:
        apply(read(REFERENCES))

    found = mistakes(caught.value)
    assert [line.split(": ")[0] for line in found] == [
        "keys[0].team", "budgets[0].user", "upstreams[0].base_url", "upstreams[1].base_url",
        "routes[1].targets[0].upstream",
    ]  # fmt: skip
    assert found[0] == "keys[0].team: no team 'platfrom'; did you mean 'platform'?"
    assert not Team.objects.exists()


BOTH = """
[[upstreams]]
name = "openai"
dialect = "respones"

[[routes]]
model = "a"
weight = 1

[[routes]]
model = "claude-*"
targets = [{ upstream = "openai" }, { upstream = "vllm" }]

[[teams]]
name = "platform"
retention_days = "x"
budgets = [{ usd = "5" }]

[[teams]]
name = "research"
budgets = [{ usd = "5" }, { usd = "6" }]

[[keys]]
team = "platform"
name = "ci"

[[keys]]
team = "reserach"
name = "ci"
"""


@pytest.mark.django_db
def test_applyconfig_reports_wrong_values_and_wrong_references_together(tmp_path):
    """What refers to an entry with a wrong value is no mistake of its own."""
    path = tmp_path / "bridge.toml"
    path.write_text(BOTH)

    with pytest.raises(CommandError) as caught:
        call_command("applyconfig", path)

    count, *found = str(caught.value).splitlines()
    assert count == f"{path}: 8 mistakes:"
    assert [line.strip().split(": ")[0] for line in found] == [
        "upstreams[0].dialect", "upstreams[0].base_url", "routes[0].targets", "routes[0]",
        "teams[0].retention_days",
        "teams[1].budgets[0] and teams[1].budgets[1] are both team research a month in UTC",
        "keys[1].team", "routes[1].targets[1].upstream",
    ]  # fmt: skip
    assert found[-2].strip() == "keys[1].team: no team 'reserach'; did you mean 'research'?"
    assert not Team.objects.exists()


def test_a_key_in_place_of_credentials_is_not_repeated():
    with pytest.raises(ConfigError) as caught:
        read(UPSTREAM + 'credentials = "sk-live-123"')

    assert str(caught.value) == "upstreams[0].credentials: Expected object, got str"
