"""Converting a LiteLLM config.yaml into a bridge.toml, with a report of the rest."""

import datetime as dt
import json
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command

from proxy.config import apply, litellm, load
from proxy.models import ApiKey, RouteTarget, Upstream
from proxy.secrets import ConfigError
from tests.for_each import for_each

TODAY = dt.date(2026, 11, 21)
INLINE = "sk-proj-" + "Cleo" * 12

CONFIG = f"""
model_list:
  - model_name: claude-sonnet
    litellm_params:
      model: openai/gpt-5.2
      api_key: os.environ/OPENAI_API_KEY
      timeout: 600
      input_cost_per_token: 0.00000125
      output_cost_per_token: 1e-5
  - model_name: claude-sonnet
    litellm_params:
      model: azure/prod-gpt
      api_base: os.environ/AZURE_API_BASE
      api_key: {INLINE}
      api_version: 2024-10-21
      rpm: 60
  - model_name: local
    litellm_params:
      model: hosted_vllm/qwen3
      api_base: http://vllm:8000/v1
  - model_name: claude-*
    litellm_params: {{model: anthropic/claude-*}}
  - model_name: nova
    litellm_params: {{model: bedrock/amazon.nova}}
  - model_name: vectors
    litellm_params: {{model: openai/text-embedding-3-small}}
    model_info: {{mode: embedding}}
litellm_settings:
  fallbacks: [{{claude-sonnet: [local]}}, {{unrouted: [local]}}]
  drop_params: true
  default_team_settings:
    - {{team_id: t-1, team_alias: platform, max_budget: 100, budget_duration: 1d, rpm_limit: 60}}
router_settings:
  model_group_alias: {{gpt-4: claude-sonnet}}
general_settings:
  master_key: os.environ/LITELLM_MASTER_KEY
keys:
  - {{key: {INLINE}, key_alias: ada, team_id: t-1, models: [claude-sonnet]}}
"""


@pytest.fixture
def imported():
    environ = {"AZURE_API_BASE": "https://corp.openai.azure.com/"}
    return litellm.read(CONFIG, today=TODAY, environ=environ)


@pytest.fixture
def file(imported):
    return load.read(imported.toml)


def reasons(imported):
    return {finding.where: finding.why for finding in imported.findings}


def one(model, **params):
    entry = {"model_name": "m", "litellm_params": {"model": model, **params}}
    return litellm.read(json.dumps({"model_list": [entry]}), today=TODAY, environ={})


def test_deployments_become_upstreams_with_keys_by_reference(file):
    found = {each["name"]: each for each in file.upstreams}

    assert set(found) == {"openai", "azure", "hosted-vllm", "anthropic"}
    assert (found["openai"]["dialect"], found["openai"]["profile"]) == ("responses", "openai")
    assert found["openai"]["secret"] == {"env": "OPENAI_API_KEY"}
    assert found["openai"]["timeouts"] == {"total_s": 600}
    assert found["azure"]["base_url"] == "https://corp.openai.azure.com/openai/v1"
    assert found["hosted-vllm"]["profile"] == "vllm"
    assert found["hosted-vllm"]["secret"] == {}
    assert found["anthropic"]["secret"] == {"env": "ANTHROPIC_API_KEY"}


def test_deployments_of_one_name_share_a_route_with_fallbacks_of_weight_0(file):
    routes = {route["model"]: route["targets"] for route in file.routes}

    assert list(routes) == ["claude-sonnet", "local", "claude-*", "gpt-4"]
    shown = [(each["upstream"], each["model"], each["weight"]) for each in routes["claude-sonnet"]]
    assert shown == [
        ("openai", "gpt-5.2", 2),
        ("azure", "prod-gpt", 2),
        ("hosted-vllm", "qwen3", 0),
    ]
    assert routes["gpt-4"] == routes["claude-sonnet"]
    assert routes["claude-*"][0]["model"] == ""


def test_costs_for_a_token_become_prices_for_a_million(file):
    (price,) = file.prices

    assert (price["model"], price["since"]) == ("gpt-5.2", TODAY)
    assert (price["input"], price["output"]) == (Decimal("1.25"), Decimal(10))


def test_teams_keys_and_budgets_are_converted(file):
    teams = {team["name"]: team for team in file.teams}
    keys = {key["name"]: key for key in file.keys}

    (budget,) = teams["platform"]["budgets"]
    assert (budget["usd"], budget["period"]) == (100, "day")
    assert teams["platform"]["limits"] == {"rpm": 60}
    assert (keys["ada"]["team"], keys["ada"]["models_allowed"]) == ("platform", ["claude-sonnet"])
    assert keys["ada"]["secret_reference"] == {"env": "BRIDGE_KEY_PLATFORM_ADA"}
    assert keys["master"]["secret_reference"] == {"env": "LITELLM_MASTER_KEY"}
    assert keys["master"]["scopes"] == ["messages", "reports", "admin"]


def test_entries_that_were_not_converted_are_reported_by_path(imported):
    found = reasons(imported)

    assert "AZURE_API_KEY" in found["model_list[1].litellm_params.api_key"]
    assert "model_list[1].litellm_params.rpm" in found
    assert "bedrock" in found["model_list[4]"]
    assert "embedding" in found["model_list[5]"]
    assert "litellm_settings.drop_params" in found
    assert "no route" in found["litellm_settings.fallbacks[1].unrouted"]
    assert "BRIDGE_KEY_PLATFORM_ADA" in found["keys[0].key"]


def test_a_secret_in_the_file_is_neither_copied_nor_reported(imported):
    assert INLINE not in imported.toml
    assert INLINE not in repr(imported.findings)


@pytest.mark.django_db
def test_the_result_can_be_applied(file, monkeypatch):
    monkeypatch.setenv("LITELLM_MASTER_KEY", "sk-" + "Ada0" * 12)
    monkeypatch.setenv("BRIDGE_KEY_PLATFORM_ADA", "sk-" + "Ben0" * 12)

    apply.apply(file)

    assert Upstream.objects.filter(managed=True).count() == 4
    assert RouteTarget.objects.filter(route__model="claude-sonnet", weight=0).count() == 1
    assert set(ApiKey.objects.values_list("name", flat=True)) == {"ada", "master"}


@for_each(
    ("model", "params", "dialect", "profile", "base_url"),
    [
        ("gpt-5.2", {}, "responses", "openai", "https://api.openai.com/v1"),
        ("claude-opus-5", {}, "anthropic", "anthropic", "https://api.anthropic.com"),
        ("openai/x", {"api_base": "http://tgi:80/v1"}, "chat", "generic", "http://tgi:80/v1"),
        ("ollama/x", {"api_base": "http://gpu:11434"}, "chat", "ollama", "http://gpu:11434/v1"),
        ("openai/responses/o5", {}, "responses", "openai", "https://api.openai.com/v1"),
    ],
)
def test_the_model_name_determines_the_provider(model, params, dialect, profile, base_url):
    (upstream,) = load.read(one(model, **params).toml).upstreams

    assert (upstream["dialect"], upstream["profile"]) == (dialect, profile)
    assert upstream["base_url"] == base_url


@for_each(
    ("params", "where"),
    [
        ({"api_base": f"https://me:{INLINE}@host/v1"}, "api_base"),
        ({"api_base": f"https://host/v1?key={INLINE}"}, "api_base"),
        ({"api_base": "os.environ/NOT_SET"}, "api_base"),
        ({"input_cost_per_token": "a lot", "output_cost_per_token": 1}, "input_cost_per_token"),
        ({"input_cost_per_token": 1e-15, "output_cost_per_token": 0}, "input_cost_per_token"),
        ({"timeout": "soon"}, "timeout"),
        ({"extra_headers": {"x-key": INLINE}}, "extra_headers"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_an_unsupported_parameter_is_reported(params, where):
    found = one("openai/gpt-5.2", **params)

    assert f"model_list[0].litellm_params.{where}" in reasons(found)
    assert INLINE not in found.toml + repr(found.findings)


@for_each(
    ("text", "message"),
    [
        ("", "none of model_list"),
        ("[]", "expected a mapping"),
        ("a: 1", "none of model_list"),
        ("model_list: 3", "model_list: expected a list"),
        ("model_list: [3]", r"model_list\[0\]: expected a mapping"),
        ("model_list: [{litellm_params: []}]", "litellm_params: expected a mapping"),
        ("a: {b", "not valid YAML: line"),
        ("a: !!python/object/apply:os.system [id]", "not valid YAML"),
        (f"a: 'x\nkey: {INLINE}", "not valid YAML"),
    ],
)
def test_an_invalid_file_is_rejected_without_quoting_it(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        litellm.read(text, today=TODAY, environ={})

    assert INLINE not in str(caught.value)


class TestTheCommand:
    @pytest.fixture
    def config(self, tmp_path):
        path = tmp_path / "config.yaml"
        path.write_text(CONFIG)
        return path

    def run(self, *arguments):
        call_command("importconfig", "--from", "litellm", *map(str, arguments))

    def test_an_import_with_findings_exits_with_1_and_prints_a_table(
        self, config, tmp_path, capsys
    ):
        with pytest.raises(SystemExit) as ended:
            self.run(config, "--out", tmp_path / "bridge.toml")

        assert ended.value.code == 1
        assert "Changed or left out" in capsys.readouterr().out
        assert load.read_file(tmp_path / "bridge.toml").routes

    def test_an_import_without_findings_exits_with_0(self, tmp_path, capsys):
        path = tmp_path / "config.yaml"
        path.write_text("model_list: [{model_name: a, litellm_params: {model: openai/gpt-5.2}}]")

        self.run(path)

        out, err = capsys.readouterr()
        assert load.read(out).routes[0]["model"] == "a"
        assert "everything was converted" in err

    def test_the_report_is_available_as_json(self, config, capsys):
        with pytest.raises(SystemExit):
            self.run(config, "--json")

        report = json.loads(capsys.readouterr().err)
        assert report["written"]["keys"] == 2
        assert report["findings"][0]["verdict"] in {"dropped", "changed"}

    def test_an_existing_file_is_not_overwritten(self, config, tmp_path):
        (tmp_path / "bridge.toml").write_text("mine")

        with pytest.raises(CommandError, match="exists") as refused:
            self.run(config, "--out", tmp_path / "bridge.toml")

        assert refused.value.returncode == 2
        assert (tmp_path / "bridge.toml").read_text() == "mine"

    def test_a_missing_file_exits_with_2(self, tmp_path):
        with pytest.raises(CommandError, match=r"none\.yaml") as refused:
            self.run(tmp_path / "none.yaml")

        assert refused.value.returncode == 2


@for_each(
    "text",
    [
        "a0: &a0 [x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)),
        "model_list: &all [*all]\n",
    ],
    ids=["doubling", "cycle"],
)
def test_aliases_that_expand_to_too_many_values_are_rejected(text):
    with pytest.raises(ConfigError, match="more than 100000 values"):
        litellm.read(text, today=dt.date(2026, 11, 1))
