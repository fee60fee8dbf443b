"""Reports of the running server: unknown values are null, completed requests are no errors."""

import csv
import io
import itertools
import json

import pytest

from proxy.models import ApiKey, Team
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Stall, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, newest_row, row
from tests.proxy.gateway.http_client import GatewayClient

SINCE = "from=2026-01-01"
CLAUDE_CODE = {"user_agent": "claude-cli/2.1.329 (external, cli)"}
numbers = itertools.count()
KNOWN = (
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_5m_tokens",
    "cache_write_1h_tokens", "reasoning_tokens",
)  # fmt: skip


class ReportsTeam:
    """A team that sends requests and reads its own reports from the running gateway."""

    def __init__(
        self, gateway: GatewayClient, scripted: ScriptedUpstream, store: str = "full"
    ) -> None:
        team = Team.objects.create(name=f"reports-{next(numbers)}", store=store)
        self.gateway, self.scripted, self.model = gateway, scripted, f"chat-{team.name}"
        self.session = f"session-{team.name}"
        _, self.key = ApiKey.issue(team, "cli", scopes=["messages"])
        _, self.reader = ApiKey.issue(team, "finance", scopes=["reports"])
        self.team = team

    def send(self, script, **fields):
        self.scripted.on(self.model, script)
        headers = {"x_api_key": self.key, "x_claude_code_session_id": self.session, **CLAUDE_CODE}
        reply = self.gateway.post(message(self.model, **fields), **headers)
        return row(reply.id)

    def send_and_disconnect(self):
        """Send a request with unknown usage: its client disconnects before the first byte."""
        self.scripted.on(self.model, [Stall()])
        headers = {"x_api_key": self.key, "x_claude_code_session_id": self.session, **CLAUDE_CODE}
        before = len(self.scripted.requests_for(self.model))
        with self.gateway.open(message(self.model), **headers):
            self.scripted.wait_until(lambda _: len(self.scripted.requests_for(self.model)) > before)
        return newest_row(model_requested=self.model, outcome="client_gone")

    def read(self, path: str):
        reply = self.gateway.request("GET", path, headers={"x-api-key": self.reader})
        assert reply.status == 200, reply.body
        return reply

    def json(self, path: str):
        return self.read(path).json


@pytest.fixture
def reports(gateway: GatewayClient, scripted: ScriptedUpstream, reload) -> ReportsTeam:
    team = ReportsTeam(gateway, scripted)
    reload()
    return team


@pytest.fixture
def metadata_reports(gateway: GatewayClient, scripted: ScriptedUpstream, reload) -> ReportsTeam:
    """A team whose conversations are not stored."""
    team = ReportsTeam(gateway, scripted, store="metadata")
    reload()
    return team


def test_values_that_no_request_reported_are_null_in_every_report(reports: ReportsTeam):
    assert reports.send_and_disconnect().output_source == "missing"

    totals = reports.json(f"/api/v1/usage/?{SINCE}")["totals"]
    assert totals["requests"] == totals["output_missing_requests"] == 1
    summary = reports.json(f"/api/v1/summary/?{SINCE}")
    (top,) = reports.json(f"/api/v1/top/?{SINCE}&by=model&metric=output_tokens")["data"]
    month = reports.gateway.request("GET", "/api/v1/me/", headers={"x-api-key": reports.key}).json
    (session,) = reports.json(f"/api/v1/sessions/?{SINCE}")["data"]
    for found in (totals, summary, top, month["this_month"]):
        assert {name: found[name] for name in KNOWN} == dict.fromkeys(KNOWN)
        assert found["output_tokens_reported"] == 0
    assert {session[name] for name in KNOWN[:-1]} == {None}
    assert summary["cache_hit_rate"] is None
    (cached,) = reports.json(f"/api/v1/cache/?{SINCE}")["data"]
    assert {name for name, value in cached.items() if value is not None} == {"saved_is_partial"}
    (latency,) = reports.json(f"/api/v1/latency/?{SINCE}")["data"]
    assert latency["output_tokens_per_upstream_s"] is None
    series = reports.json(
        f"/api/v1/timeseries/?{SINCE}&bucket=1mo"
        "&metric=total_tokens,cache_write_tokens,cache_hit_rate,output_tokens"
    )["series"]
    assert [{*one["points"]} - {0} for one in series] == [{None}] * 4


def test_a_csv_report_has_empty_cells_for_unknown_values(reports: ReportsTeam):
    reports.send_and_disconnect()

    lines = reports.read(f"/api/v1/usage/?{SINCE}&format=csv").body.decode()

    (line,) = csv.DictReader(io.StringIO(lines))
    assert {line[name] for name in KNOWN} == {""}
    assert (line["output_tokens_reported"], line["output_missing_requests"]) == ("0", "1")


def test_totals_sum_known_values_and_count_missing_ones(reports: ReportsTeam):
    reports.send_and_disconnect()
    reports.send(upstream_scripts.chat())

    totals = reports.json(f"/api/v1/usage/?{SINCE}")["totals"]

    assert (totals["output_tokens"], totals["output_missing_requests"]) == (5, 1)
    assert totals["cache_write_5m_tokens"] is None


def _claude_code_report(reports: ReportsTeam, day: str):
    path = f"/v1/organizations/usage_report/claude_code?starting_at={day}&limit=1000"
    reply = reports.gateway.request("GET", path, headers={"x-api-key": _admin(reports)})
    assert reply.status == 200, reply.body
    name = f"{reports.team.name}/cli"
    return next(one for one in reply.json["data"] if one["actor"]["api_key_name"] == name)


def test_the_claude_code_report_has_null_for_unknown_values(metadata_reports: ReportsTeam):
    reports = metadata_reports
    day = reports.send_and_disconnect().created.date().isoformat()

    unknown = _claude_code_report(reports, day)
    assert unknown["core_metrics"] == {
        "num_sessions": 1,
        "lines_of_code": {"added": None, "removed": None},
        "commits_by_claude_code": None,
        "pull_requests_by_claude_code": None,
    }
    assert {json.dumps(tool) for tool in unknown["tool_actions"].values()} == {
        '{"accepted": null, "rejected": null}'
    }
    (used,) = unknown["model_breakdown"]
    assert {*used["tokens"].values(), used["estimated_cost"]["amount"]} == {None}

    reports.send(upstream_scripts.chat())
    (used,) = _claude_code_report(reports, day)["model_breakdown"]
    assert used["tokens"] == {
        "input": 12, "output": 5, "cache_read": None, "cache_creation": None,
    }  # fmt: skip


def test_the_claude_code_report_has_zero_for_a_read_transcript_without_tool_calls(
    reports: ReportsTeam,
):
    day = reports.send_and_disconnect().created.date().isoformat()

    known = _claude_code_report(reports, day)

    assert known["core_metrics"] == {
        "num_sessions": 1,
        "lines_of_code": {"added": 0, "removed": 0},
        "commits_by_claude_code": 0,
        "pull_requests_by_claude_code": 0,
    }
    assert {json.dumps(tool) for tool in known["tool_actions"].values()} == {
        '{"accepted": 0, "rejected": 0}'
    }


def test_the_analytics_report_counts_requests_without_values(reports: ReportsTeam):
    exchange = reports.send_and_disconnect()
    day = f"{exchange.created.date().isoformat()}T00:00:00Z"

    path = "/v1/organizations/analytics/usage?group_by[]=model&limit=1000"
    reply = reports.gateway.request(
        "GET", f"{path}&starting_at={day}", headers={"x-api-key": _admin(reports)}
    )

    assert reply.status == 200, reply.body
    used = next(
        one["usage"] for one in reply.json["data"] if one["group"]["model"] == reports.model
    )
    assert (used["output_tokens"], used["total_tokens"], used["requests"]) == (0, 0, 1)
    assert used["missing_requests"] == {
        "uncached_input_tokens": 1, "cache_creation": 1, "cache_read_input_tokens": 1,
        "output_tokens": 1,
    }  # fmt: skip


def _admin(reports: ReportsTeam) -> str:
    return ApiKey.issue(reports.team, f"admin-{next(numbers)}", scopes=["admin"])[1]


@pytest.mark.parametrize("stream", [True, False])
def test_only_a_streamed_response_has_an_output_speed(reports: ReportsTeam, stream):
    exchange = reports.send(
        upstream_scripts.pieces(upstream_scripts.chat_events(), LAST_CHUNK), stream=stream
    )

    speed = reports.json(f"/api/v1/requests/{exchange.pk}/")["output_tps"]
    assert exchange.output_tokens == 5
    assert (speed is not None) is stream


def test_completed_requests_are_not_counted_as_errors(reports: ReportsTeam):
    for _ in range(3):
        reports.send(upstream_scripts.chat())
    reports.send(json_response({"error": {"message": "no", "type": "server_error"}}, 500))
    reports.send_and_disconnect()

    data = reports.json(f"/api/v1/errors/?{SINCE}")["data"]

    assert [(one["value"], one["requests"], one["errors"]) for one in data] == [
        ("api_error", 1, 1),
        (None, 1, 0),
    ]
    assert data[1]["client_gone"] == 1
    (whole,) = reports.json(f"/api/v1/errors/?{SINCE}&by=model")["data"]
    assert (whole["requests"], whole["errors"], whole["client_gone"]) == (5, 1, 1)


def test_without_errors_the_list_is_empty_and_its_csv_has_a_header(reports: ReportsTeam):
    reports.send(upstream_scripts.chat())

    assert reports.json(f"/api/v1/errors/?{SINCE}")["data"] == []
    lines = reports.read(f"/api/v1/errors/?{SINCE}&format=csv").body.decode().splitlines()
    assert lines == ["value,requests,errors,error_rate,client_gone,client_gone_rate"]
