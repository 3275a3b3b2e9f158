"""Each alert on recorded series: it fires where it must, and is quiet where it must. promtool runs
the rules as Prometheus does (https://prometheus.io/docs/prometheus/2.42/configuration/).
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost.resources.estimate import Estimate
from infra.render.monitoring.objects import INTERVAL_S, STACK_USD, rule_groups, usd_of_a_day
from stacks.spec import StackSpec
from tests.unit.monitoring.conftest import BURN
from tests.unit.monitoring.test_dashboards import questions

RUN = 'stack="prod",job_name="finetune",job_id="12"'
NODE = 'node_name="worker-{}",state_base="{}",state_is_drain="{}",reason="{}"'
PRICES = {"nodeset": "worker"}


def node(number: int, state: str, drain: str = "false", reason: str = "") -> str:
    return "slurm_node_info{" + NODE.format(number, state, drain, reason) + "}"


def job(user: str) -> str:
    return f'slurm_job_info{{job_id="7",job_state="RUNNING",user_name="{user}"}}'


def series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


def run(
    tool: str, folder: Path, spec: StackSpec, *cases: dict[str, Any], burn: Estimate = BURN
) -> None:
    """Hold the stack's rules against recorded series; what differs is the failure's text."""
    groups = rule_groups(spec, burn)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    tests = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{INTERVAL_S}s",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [{"interval": "1m", **case} for case in cases],
    }
    (folder / "tests.yaml").write_text(json.dumps(tests))
    done = subprocess.run(
        [tool, "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def asked(expression: str, at: str, *values: tuple[str, float]) -> dict[str, Any]:
    samples = [{"labels": labels, "value": value} for labels, value in values]
    return {"expr": expression, "eval_time": at, "exp_samples": samples}


@pytest.mark.feature("S003-42")
def test_prometheus_takes_every_rule_and_every_question(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    panels = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(questions())]
    groups = [*rule_groups(watched, BURN), {"name": "panels", "rules": panels}]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"groups": groups}))
    done = subprocess.run(
        [promtool, "check", "rules", "all.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.feature("S002-87")
def test_gpus_that_are_held_and_not_used_are_told(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    """Two jobs: one busy, one at 5 % whose alert needs its half hour."""
    gpu = 'DCGM_FI_DEV_GPU_UTIL{{gpu="{}",Hostname="n",hpc_job="{}"}}'
    alert = "SoperatorLowGpuUtilization"
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": [
                series(gpu.format(0, "7"), "5x90"),
                series(gpu.format(1, "7"), "5x90"),
                series(gpu.format(2, "8"), "93x90"),
                # No job holds it: the pause and the idle alert speak of such.
                series(gpu.format(3, ""), "0x90"),
            ],
            "promql_expr_test": [
                asked(f'ALERTS{{alertname="{alert}",alertstate="firing"}}', "25m"),
                asked(
                    f'count by (hpc_job) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "45m",
                    ('{hpc_job="7"}', 1),
                ),
            ],
        },
    )


@pytest.mark.feature("S001-82")
def test_a_step_that_stands_still_is_told_and_a_job_that_ended_is_not(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    """The clock of promtool starts at 0: the last step ended at second 60."""
    alert = 'count(ALERTS{alertname="SoperatorTrainStepStalled",alertstate="firing"})'
    name = f"train_last_step_timestamp_seconds{{{RUN}}}"
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": [series(name, "60x60")],
            "promql_expr_test": [asked(alert, "15m"), asked(alert, "20m", ("{}", 1))],
        },
        {
            # It sends until minute 5 and is gone: nothing stands still.
            "input_series": [series(name, "60+60x5")],
            "promql_expr_test": [asked(alert, "20m"), asked(alert, "40m")],
        },
        {
            "input_series": [series(name, "0+60x60")],
            "promql_expr_test": [asked(alert, "50m")],
        },
    )


def test_a_checkpoint_that_is_too_old_is_told(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    alert = 'count(ALERTS{alertname="SoperatorCheckpointOld",alertstate="firing"})'
    name = f"train_last_checkpoint_timestamp_seconds{{{RUN}}}"
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": [series(name, "0x150")],
            "promql_expr_test": [asked(alert, "119m"), asked(alert, "125m", ("{}", 1))],
        },
        {
            # Saved again after 100 minutes.
            "input_series": [series(name, "0x99 6000x60")],
            "promql_expr_test": [asked(alert, "125m")],
        },
    )


def test_a_drained_node_is_told_with_slurms_reason(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    alert = 'ALERTS{alertname="SoperatorNodeDrained",alertstate="firing"}'
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": [
                series(node(0, "IDLE", "true", "[node_problem] fan"), "1x60"),
                series(node(1, "ALLOCATED"), "1x60"),
            ],
            "promql_expr_test": [
                asked(alert, "9m"),
                asked(
                    f"count by (node_name, reason) ({alert})",
                    "15m",
                    ('{node_name="worker-0", reason="[node_problem] fan"}', 1),
                ),
            ],
        },
    )


def test_jobs_that_will_break_the_budget_are_told(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    """Of $36 an hour a node, 5,000 a month is 4.6 hours of one a day: two for 2.3, and an hour."""
    alert = 'count(ALERTS{alertname="SoperatorBudgetBurn",alertstate="firing"})'
    busy = [series(node(n, "ALLOCATED"), "1x300") for n in (0, 1)]
    idle = [series(node(n, "IDLE"), "1x300") for n in (0, 1)]
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": busy,
            "promql_expr_test": [asked(alert, "190m"), asked(alert, "210m", ("{}", 1))],
        },
        {"input_series": idle, "promql_expr_test": [asked(alert, "90m")]},
    )


def test_nodes_without_any_job_are_told_after_the_declared_hours(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    alert = 'count by (nodeset) (ALERTS{alertname="SoperatorNodesIdle",alertstate="firing"})'
    idle = [series(node(n, "IDLE"), "1x300") for n in (0, 1)]
    # Each hour all nodes are held for five minutes.
    taken = " ".join(["1x54 stale _x4"] * 5)
    held = " ".join(["_x55 1x4"] * 5)
    checked = [
        series(node(0, "IDLE"), taken),
        series(node(0, "ALLOCATED"), held),
        series(job("soperatorchecks"), held),
    ]
    half = [*idle, series(job("ann"), "1x300")]
    told = ('{nodeset="worker"}', 1.0)
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": idle,
            "promql_expr_test": [asked(alert, "230m"), asked(alert, "250m", told)],
        },
        {"input_series": checked, "promql_expr_test": [asked(alert, "250m", told)]},
        {"input_series": half, "promql_expr_test": [asked(alert, "250m")]},
    )
    unpriced = {"input_series": idle, "promql_expr_test": [asked(alert, "250m", told)]}
    unknown = replace(BURN, node_usd_per_hour={"worker": None})
    run(promtool, tmp_path, watched, unpriced, burn=unknown)


def test_what_nodes_cost_follows_what_they_do(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    """Two of four nodes are there and busy, one idles, one is powered down: 3 x $36 + $2.60."""
    off = node(3, "IDLE")[:-1] + ',state_is_powered_down="true"}'
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": [
                series(node(0, "ALLOCATED"), "1x30"),
                series(node(1, "MIXED"), "1x30"),
                series(node(2, "IDLE"), "1x30"),
                series(off, "1x30"),
            ],
            "promql_expr_test": [
                asked(
                    "soperator:stack_usd_per_hour", "10m", ("soperator:stack_usd_per_hour", 110.6)
                ),
                asked("soperator:jobs_usd_per_hour", "10m", ("soperator:jobs_usd_per_hour", 72)),
            ],
        },
    )


def test_a_day_costs_the_hours_that_were_seen(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    """Two hours of one idle node, then a pause without a series: 2 x ($36 + $2.60)."""
    run(
        promtool,
        tmp_path,
        watched,
        {
            "input_series": [series(node(0, "IDLE"), "1x119 stale")],
            "promql_expr_test": [asked(usd_of_a_day(STACK_USD), "8h", ("{}", 77.2))],
        },
    )


def test_a_stack_that_is_not_seen_costs_an_unknown_amount(
    promtool: str, tmp_path: Path, watched: StackSpec
) -> None:
    """No exporter of Slurm: no series, and not the cost of zero nodes."""
    run(
        promtool,
        tmp_path,
        watched,
        {"input_series": [], "promql_expr_test": [asked("soperator:stack_usd_per_hour", "10m")]},
    )
