"""Evaluate each alert rule with promtool: it fires on its fault, and stays silent without it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.fakes.optional_tools import skip_or_fail

RULES = Path(__file__).parents[3] / "deploy/prometheus/alerts.yaml"
END = "2h"
NODE = 'instance="node-1"'


class Case(NamedTuple):
    """Series in promtool's notation, by name; ``quiet`` are values that must not fire the alert."""

    series: tuple[str, ...]
    faulty: tuple[str, ...]
    quiet: tuple[str, ...]


def gauge(name: str, faulty: str, quiet: str) -> Case:
    return Case((name,), (f"{faulty}x120",), (f"{quiet}x120",))


def share(name: str, failed_outcome: str, label: str) -> Case:
    series = (
        f'{name}{{{label},outcome="{failed_outcome}"}}',
        f'{name}{{{label},outcome="completed"}}',
    )
    return Case(series, ("0+50x120", "0+50x120"), ("0+1x120", "0+99x120"))


CASES = {
    "BridgeDown": gauge(f'up{{job="messages-bridge",{NODE}}}', "0+0", "1+0"),
    "BridgeJournalNotWritable": gauge(f"bridge_record_spool_up{{{NODE}}}", "0+0", "1+0"),
    "BridgeDatabaseUnavailable": gauge(f"bridge_record_database_up{{{NODE}}}", "0+0", "1+0"),
    "BridgeBacklogGrows": gauge(f"bridge_record_oldest_seconds{{{NODE}}}", "700+0", "5+0"),
    "BridgeRecordsSetAside": gauge(f"bridge_record_set_aside{{{NODE}}}", "1+0", "0+0"),
    "BridgeUpstreamFails": share("bridge_requests_total", "upstream_error", 'upstream="openai"'),
    "BridgeTeamFails": share("bridge_team_requests_total", "upstream_timeout", 'team="web"'),
    "BridgeUpstreamSlow": Case(
        (
            'bridge_first_byte_seconds_bucket{upstream="openai",le="10"}',
            'bridge_first_byte_seconds_bucket{upstream="openai",le="60"}',
            'bridge_first_byte_seconds_bucket{upstream="openai",le="+Inf"}',
        ),
        ("0+0x120", "0+50x120", "0+50x120"),
        ("0+50x120", "0+50x120", "0+50x120"),
    ),
    "BridgeUpstreamCooldown": gauge('bridge_upstream_cooldowns{upstream="openai"}', "2+0", "0+0"),
    "BridgeUpstreamKeyRefused": gauge(
        'bridge_upstream_attempts_total{upstream="openai",status="401"}', "0+1", "9+0"
    ),
    "BridgeCredentialRefreshFails": Case(
        (
            f'bridge_credential_refreshes_total{{{NODE},upstream="aws",result="failed"}}',
            f'bridge_credential_refreshes_total{{{NODE},upstream="aws",result="refreshed"}}',
        ),
        ("0+1x120", "7+0x120"),
        ("0+1x120", "0+1x120"),
    ),
    "BridgeCredentialExpires": gauge(
        f'bridge_credential_expiry_timestamp_seconds{{{NODE},upstream="aws"}}', "60+0", "999999999+0"
    ),
    "BridgeOwnErrors": gauge('bridge_requests_total{outcome="gateway_error"}', "0+9", "9+0"),
    "BridgeOverhead": Case(
        (
            'bridge_overhead_seconds_bucket{le="0.1"}',
            'bridge_overhead_seconds_bucket{le="0.5"}',
            'bridge_overhead_seconds_bucket{le="+Inf"}',
        ),
        ("0+0x120", "0+90x120", "0+90x120"),
        ("0+90x120", "0+90x120", "0+90x120"),
    ),
    "BridgeOverloaded": gauge(f'bridge_refusals_total{{{NODE},reason="lag"}}', "0+5", "5+0"),
    "BridgeBudgetsUnchecked": gauge(
        'bridge_budgets_unchecked_total{unavailable="counters"}', "0+1", "3+0"
    ),
    "BridgeRedisUnavailable": gauge(f"bridge_redis_up{{{NODE}}}", "0+0", "1+0"),
    "BridgeDiskNearlyFull": gauge(f"bridge_data_free_bytes{{{NODE}}}", "1000000000+0", "90000000000+0"),
    "BridgeDegraded": gauge(f"bridge_degraded{{{NODE}}}", "1+0", "0+0"),
    "BridgeRecordIncomplete": Case(
        (f"bridge_record_lost_checkpoints{{{NODE}}}", f"bridge_record_underived{{{NODE}}}"),
        ("0+0x120", "1+0x120"),
        ("0+0x120", "0+0x120"),
    ),
    "BridgeRestarts": gauge(
        f'process_start_time_seconds{{job="messages-bridge",{NODE},worker="0"}}', "0+60", "9+0"
    ),
    "BridgeUnpriced": gauge(
        'bridge_unpriced_requests_total{upstream="openai",model="new"}', "0+1", "5+0"
    ),
    "BridgeBudgetNearlySpent": Case(
        (
            'bridge_budget_remaining_usd{team="web",period="month"}',
            'bridge_budget_limit_usd{team="web",period="month"}',
        ),
        ("5+0x120", "100+0x120"),
        ("50+0x120", "100+0x120"),
    ),
    "BridgeVersionsDiffer": Case(
        ('bridge_build_info{version="1.0"}', 'bridge_build_info{version="1.1"}'),
        ("1+0x120", "1+0x120"),
        ("1+0x120", "_x120"),
    ),
    "BridgeUnknownEvents": gauge(
        'bridge_unknown_events_total{dialect="chat",kind="new"}', "0+1", "5+0"
    ),
}  # fmt: skip


def rules() -> list[dict[str, Any]]:
    [file] = yaml.safe_load_all(RULES.read_text(encoding="utf-8"))
    return [rule for group in file["groups"] for rule in group["rules"]]


def test_every_alert_has_one_case():
    assert sorted(rule["alert"] for rule in rules()) == sorted(CASES)


def test_each_alert_fires_on_its_fault_only(tmp_path: Path):
    promtool = shutil.which("promtool")
    if promtool is None:
        skip_or_fail("NO promtool HERE (Debian: prometheus): the alerts were not evaluated")
    files = [write_tests(tmp_path, rule) for rule in rules()]

    for command in (("check", "rules", RULES), ("test", "rules", *files)):
        run = subprocess.run(  # noqa: S603 - our own command line
            [promtool, *command], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("SUCCESS") == len(CASES)


def write_tests(folder: Path, rule: dict[str, Any]) -> Path:
    """Write a file of rules with this alert only, and its tests; return the path of the tests.

    A test evaluates each rule of its file 120 times, so a file with all alerts takes much longer.
    """
    alert = rule["alert"]
    rules_file, tests_file = folder / f"{alert}.rules.yaml", folder / f"{alert}.yaml"
    rules_file.write_text(yaml.safe_dump({"groups": [{"name": alert, "rules": [rule]}]}))
    count = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    tests = [
        {
            "name": f"{alert} {comparison} 0",
            "interval": "1m",
            "input_series": [
                {"series": name, "values": one}
                for name, one in zip(CASES[alert].series, values, strict=True)
            ],
            "promql_expr_test": [
                {
                    "expr": f"({count}) {comparison} bool 0",
                    "eval_time": END,
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for values, comparison in ((CASES[alert].faulty, ">"), (CASES[alert].quiet, "=="))
    ]
    file = {"rule_files": [str(rules_file)], "evaluation_interval": "1m", "tests": tests}
    tests_file.write_text(yaml.safe_dump(file), encoding="utf-8")
    return tests_file
