"""Every rule of the table is found by a planted mistake, and every finding names its rule."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import is_dataclass
from pathlib import Path
from string import Formatter
from typing import Any, get_type_hints

import pytest

from infra.render.charts import platform_charts
from stacks.check import check
from stacks.load import STACKS_DIR, load_stack
from stacks.rules import RULES, read_rules
from stacks.spec import StackSpec
from tests import SHIPPED
from tests.unit.stacks.conftest import CONFIG, Change, changed, load
from tests.unit.stacks.test_check import ERRORS, WARNINGS, worker
from tests.unit.stacks.test_node_rules import NODE_ERRORS, NODE_WARNINGS
from tests.unit.stacks.test_soperator_rules import SOPERATOR_ERRORS, SOPERATOR_WARNINGS
from tests.unit.stacks.test_upgrade import CHANGES
from tests.unit.stacks.test_verbatim_rules import VERBATIM_ERRORS

SPEED = {"scenario": "s", "output_tokens_per_s": 3.8, "source": "x"}
RUN = {"job": "finetune", "tokens_per_epoch": 7_200_000, "train_tokens_per_s": 2000, "source": "x"}


def chat(**values: Any) -> Change:
    return lambda config: config["chat"].update(values)


def runs(*entries: dict[str, Any]) -> Change:
    return lambda config: config.update(runs=list(entries))


def quotas(*entries: tuple[str, int]) -> Change:
    given = [{"name": name, "limit": limit} for name, limit in entries]
    return lambda config: config.update(quotas=given)


def partition(index: int, **values: Any) -> Change:
    return lambda config: config["slurm"]["partitions"][index].update(values)


def user(name: str) -> Change:
    key = CONFIG["login"]["ssh_public_keys"]
    return lambda c: c.update(soperator={"users": [{"name": name, "ssh_public_keys": key}]})


def submounts(count: int) -> Change:
    given = [{"name": f"s{n}", "mount_path": f"/mnt/s{n}", "size_gib": 1} for n in range(count)]
    return lambda config: config["storage"].update(submounts=given)


def sets(count: int, *, nodes: int = 1) -> Change:
    """So many nodesets beside the first."""

    def change(config: dict[str, Any]) -> None:
        workers = config["nodes"]["workers"]
        workers += [{**workers[0], "name": f"w{n}", "nodes": nodes} for n in range(count)]

    return change


def preempted_training(**values: Any) -> Change:
    def change(config: dict[str, Any]) -> None:
        worker(config)["billing"] = "preemptible"
        config["jobs"][1].update(module="workloads.train", **values)

    return change


def waiting_for_more_nodes(config: dict[str, Any]) -> None:
    config["jobs"][0]["nodes"] = 2
    config["jobs"][1]["least_nodes"] = 1


MISTAKES: list[tuple[str, Change]] = [
    ("nebius.subnet-network", lambda c: c["nebius"].update(subnet_id="vpcsubnet-1")),
    ("nebius.company-name", lambda c: c["nebius"].update(company_name="Your Company")),
    ("cluster.soperator-refused", lambda c: c["cluster"].update(soperator_version="5.0.0")),
    ("cluster.soperator-unknown", lambda c: c["cluster"].update(soperator_version="4.1.99")),
    ("cluster.kubernetes-least", lambda c: c["cluster"].update(kubernetes_version="1.31")),
    ("chat.turns", chat(turns=2001)),
    ("chat.cached-share", chat(cached_share=2)),
    ("chat.model-twice", chat(api_models=["m", "m"])),
    ("chat.serving-nodes-of", chat(serving_nodes=2)),
    ("chat.serving-nodes-most", chat(serving_nodeset="worker", serving_nodes=3)),
    ("chat.scenario-twice", chat(speeds=[SPEED, SPEED])),
    (
        "chat.speed-twice",
        chat(speeds=[{**SPEED, "engine": "e"}, {**SPEED, "engine": "e", "scenario": "t"}]),
    ),
    ("runs.job-twice", runs(RUN, RUN)),
    ("runs.job", runs({**RUN, "job": "x"})),
    ("runs.source-missing", runs({**RUN, "source": None})),
    ("runs.source-unused", runs({**RUN, "train_tokens_per_s": None})),
    ("runs.time-limit", runs({**RUN, "epochs": 2})),
    ("runs.preemption", lambda c: worker(c).update(billing="preemptible")),
    ("quotas.twice", quotas(("compute.disk.count", 90), ("compute.disk.count", 80))),
    ("quotas.name", quotas(("compute.disk.counts", 90))),
    ("quotas.over", quotas(("compute.instance.gpu.h100", 15))),
    ("quotas.over-at-most", quotas(("compute.instance.count", 12))),
    (
        "partitions.name",
        lambda c: c["slurm"]["partitions"].append({"name": "Gpu"}),
    ),
    (
        "partitions.name-twice",
        lambda c: c["slurm"]["partitions"].append({"name": "main"}),
    ),
    ("partitions.ref-twice", partition(0, nodesets=["worker", "worker"])),
    ("partitions.name-default", partition(0, name="default")),
    ("partitions.config-form", partition(0, config="Default=YES State")),
    ("partitions.config-form", partition(0, config="Default=YES State=")),
    ("partitions.config-own", partition(0, config="Default=YES nodes=worker-0")),
    ("partitions.config-option", partition(0, config="Default=YES MaxTme=60")),
    ("partitions.config-value", partition(0, config="Default=YES State=SIDEWAYS")),
    ("partitions.config-value", partition(0, config="Default=YES MaxTime=banana")),
    ("partitions.config-value", partition(0, config="Default=YES Hidden=perhaps")),
    ("partitions.config-value", partition(0, config="Default=YES PriorityTier=high")),
    ("partitions.config-qos", partition(0, config="Default=YES AllowQos=long")),
    ("partitions.config-qos", partition(0, config="Default=YES denyqos=normal,long")),
    ("partitions.config-qos", partition(0, config="Default=YES QOS=long")),
    ("verbatim.slurm-option", lambda c: c["slurm"].update(config_lines=["FooBarBaz=1"])),
    ("verbatim.slurm-value", lambda c: c["slurm"].update(config_lines=["MaxArraySize=x"])),
    ("partitions.hidden-shown", partition(1, config="Default=NO")),
    ("jobs.hidden", lambda c: c["jobs"][1].update(partition="hidden")),
    ("jobs.server-nodes", lambda c: c["jobs"][1].update(module="workloads.serve")),
    ("jobs.load-nodes", lambda c: c["jobs"][1].update(module="workloads.load")),
    ("jobs.after-server", lambda c: c["jobs"][0].update(module="workloads.serve")),
    ("jobs.after-nodes", waiting_for_more_nodes),
    ("jobs.least-nodes", lambda c: c["jobs"][1].update(least_nodes=3)),
    ("jobs.save-time", lambda c: c["jobs"][1].update(time_limit="00:01:00")),
    ("jobs.save-notice", preempted_training(save_s=61)),
    ("jobs.environment", lambda c: c["jobs"][1].update(environment={"MASTER_PORT": "1"})),
    ("jobs.environment", lambda c: c["jobs"][1].update(environment={"nccl debug": "INFO"})),
    ("jobs.environment-system", lambda c: c["jobs"][1].update(environment={"LD_PRELOAD": "/x.so"})),
    ("jobs.environment-system", lambda c: c["jobs"][1].update(environment={"PYTHONPATH": "/x"})),
    ("jobs.environment-system", lambda c: c["jobs"][1].update(environment={"BASH_ENV": "/x"})),
    ("jobs.environment-secret", lambda c: c["jobs"][1].update(environment={"HF_TOKEN": "hf_x"})),
    ("jobs.environment-secret", lambda c: c["jobs"][1].update(environment={"MYSQL_PWD": "x"})),
    ("jobs.environment-secret", lambda c: c["jobs"][1].update(environment={"PGPASSWORD": "x"})),
    (
        "jobs.environment-secret",
        lambda c: c["jobs"][1].update(environment={"AWS_ACCESS_KEY_ID": "x"}),
    ),
    ("jobs.environment-secret", lambda c: c["jobs"][1].update(environment={"API_KEYS": "x"})),
    ("jobs.environment-secret", lambda c: c["jobs"][1].update(environment={"SSHKEY": "x"})),
    ("jobs.environment-secret", lambda c: c["jobs"][1].update(environment={"CREDENTIALS": "x"})),
    (
        "jobs.environment-secret",
        lambda c: c["jobs"][1].update(environment={"HTTPS_PROXY": "http://me:pw@proxy:3128"}),
    ),
    (
        "jobs.environment-secret",
        lambda c: c["jobs"][1].update(environment={"HUB": f"hf_{'x' * 34}"}),
    ),
    ("jobs.environment-secret", lambda c: c["jobs"][1].update(args=[f"hub=hf_{'x' * 34}"])),
    ("jobs.environment-file", lambda c: c["jobs"][1].update(environment_file="token.env")),
    ("jobs.container", lambda c: c["jobs"][1].update(container="a b")),
    ("jobs.time-over", partition(0, config="Default=YES MaxTime=59")),
    (
        "nodes.platform-alias",
        lambda c: worker(c).update(
            platform="gpu-h200", preset="1gpu-16vcpu-200gb", infiniband_fabric=None
        ),
    ),
    (
        "nodes.ethernet",
        lambda c: worker(c).update(preset="1gpu-16vcpu-200gb", infiniband_fabric=None),
    ),
    ("cluster.namespace-taken", lambda c: c["cluster"].update(namespace="kube-system")),
    ("nodes.feature-form", lambda c: worker(c).update(features=["two words"])),
    ("nodes.feature-form", lambda c: worker(c).update(features=["a,b"])),
    ("soperator.user-name", user("daemon")),
    ("soperator.user-home", user("shared")),
    ("code.on-one-node", lambda c: c.update(code_path="/tmp/code")),
    ("storage.place-on-one-node", lambda c: c["storage"]["places"].update(logs="/var/log/jobs")),
    ("nodes.cluster-most", sets(2, nodes=2500)),
    ("nodes.sets-and-submounts", lambda c: (submounts(200)(c), sets(300)(c))),
    ("storage.disk-large", lambda c: worker(c)["boot_disk"].update(size_gib=524_288)),
    ("storage.submounts-many", submounts(32)),
    (
        "storage.accounting-unused",
        lambda c: (c["slurm"].update(accounting=False), c["nodes"].pop("accounting")),
    ),
]
"""Rule and a mistake that only it is about, beside those of test_check.py."""


FINDINGS = [f"findings.{name}" for name in ("add", "add_text", "unknown", "unique")]


def named() -> dict[str, str]:
    """Place -> rule of every finding in stacks/."""
    found: dict[str, str] = {}
    for path in {*(STACKS_DIR / "rules").glob("*.py"), STACKS_DIR / "changes.py"}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            rules = [word.value for word in node.keywords if word.arg == "rule"]
            if ast.unparse(node.func) in FINDINGS:
                rules = node.args[:1]
            for rule in rules:
                if isinstance(rule, ast.Constant):
                    found[f"{path.name}:{node.lineno}"] = str(rule.value)
    return found


def test_every_finding_names_a_rule_of_the_table():
    """A finding of another name has no row in docs/rules.md: add one to rules.tsv."""
    assert {where: rule for where, rule in named().items() if rule not in RULES} == {}


def given() -> dict[str, list[set[str]]]:
    """Rule -> the values that each of its findings gives to the message."""
    shared = {"add_text": {"message"}, "unknown": {"name", "known"}, "unique": {"first"}}
    found: dict[str, list[set[str]]] = defaultdict(list)
    for path in {*(STACKS_DIR / "rules").glob("*.py"), STACKS_DIR / "changes.py"}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in FINDINGS:
                words = {str(word.arg) for word in node.keywords} - {"spare"}
                if isinstance(node.args[0], ast.Constant):
                    kind = ast.unparse(node.func).removeprefix("findings.")
                    found[str(node.args[0].value)].append(shared.get(kind, words))
    return found


def test_a_message_shows_what_its_findings_give_and_nothing_else():
    """A value that no code gives ends the check; one that no message shows is given for nothing."""
    for rule, calls in given().items():
        fields = {field for _, field, _, _ in Formatter().parse(RULES[rule].message) if field}
        shown = {re.split(r"[.\[]", field)[0] for field in fields}
        shown -= {"value", "record", "spec", "spare"}
        assert calls == [shown] * len(calls), rule


def test_a_message_shows_nothing_of_the_stack_that_may_not_be_declared():
    """Without storage.memory a message about it ended every command with a traceback."""
    for rule in RULES.values():
        fields = [field for _, field, _, _ in Formatter().parse(rule.message) if field]
        for field in fields:
            root, *names = field.split(".")
            kind: Any = StackSpec if root == "spec" else None
            for name in names if kind else ():
                assert is_dataclass(kind), f"{rule}: {field}: {kind} may be None"
                kind = get_type_hints(kind, include_extras=False)[name]


def test_shared_memory_over_the_node_s_is_found_without_a_ram_disk_too():
    def change(config):
        config["storage"].pop("memory")
        config["nodes"]["workers"][0]["shared_memory_gib"] = 9000

    (found,) = (each for each in check(changed(change)) if each.rule == "storage.memory-both")
    assert "9000 GiB and 0 GiB of storage.memory are more than the node has" in found.message


def test_every_rule_of_the_table_is_in_the_code():
    assert set(RULES) - set(named().values()) == set()


@pytest.mark.feature("S000-75")
@pytest.mark.parametrize(("rule", "change"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_planted_mistake_is_found_by_its_rule(rule: str, change: Change):
    assert rule in {problem.rule for problem in check(changed(change))}


TOKENS = (
    f"hf_{'aB' * 17}",
    "hf_oauth_eyJhbGciOiJFZERTQSJ9.eyJzY29wZSI6WyJyZWFkIl19.c2lnbmVk",
    *(f"gh{kind}_{'aB3' * 12}" for kind in "pousr"),
    f"github_pat_{'aB3' * 7}x_{'aB3' * 19}xy",
    f"glpat-{'aB3-_' * 4}",
    f"glpat-{'aB3-' * 7}.01.0a1b2c3d4",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ASIA" + "IOSFODNN7EXAMPLE",
    f"sk-{'aB3d' * 5}T3BlbkFJ{'aB3d' * 5}",
    f"sk-proj-{'aB_-' * 18}xyT3BlbkFJ{'aB_-' * 18}xy",
    f"sk-ant-api03-{'aB3_-' * 18}abcAA",
    f"sk-{'0123456789abcdef' * 2}",
    "https://oauth2:pw@gitlab.example.com/team/data.git",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
)
HONEST = (
    "/mnt/shared/hf_checkpoints_2026-11_final_weights",
    "hf_home_of_the_whole_team_and_its_caches",
    "sk-learn-random-forest-of-2024-with-defaults-v2",
    "sk-learn-classification-report-of-every-run",
    "task-0123456789abcdef0123456789abcdef",
    "AKIAPPARTNERSHIPOFTHEWEST",
    "github_pat_rotation_of_the_year_2026_november",
    "https://example.com:8443/data@v2",
)


def forever(config: dict[str, Any]) -> None:
    config["jobs"][0].update(schedule="@daily", time_limit="9" * 4000)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("jobs.schedule-overlap", forever),
        ("lifetime.until", lambda c: c.update(lifetime={"until": "0001-01-01T00:00+14:00"})),
        ("lifetime.until", lambda c: c.update(lifetime={"until": "9999-12-31T23:00-14:00"})),
        # What stands for nodes of an attached cluster has sizes, but no fabrics.
        ("nodes.platform", lambda c: worker(c).update(platform="slurm-gpu")),
        (
            "soperator.cuda-version",
            lambda c: (
                c["cluster"].update(soperator_version="4.0.0"),
                c.update(soperator={"cuda_version": "latest"}),
            ),
        ),
    ],
)
def test_a_value_that_nothing_can_be_computed_of_is_found(rule: str, change: Change):
    """Each of them ended every command with a traceback."""
    assert rule in {problem.rule for problem in check(changed(change))}


@pytest.mark.parametrize("value", TOKENS)
def test_the_form_of_a_token_is_refused_wherever_it_stands(value: str):
    for place in ({"environment": {"HUB": value}}, {"args": [f"hub={value}"]}):
        found = check(changed(lambda c, place=place: c["jobs"][1].update(place)))
        assert "jobs.environment-secret" in {problem.rule for problem in found}, place


@pytest.mark.parametrize("value", HONEST)
def test_a_value_that_only_starts_like_a_token_is_free(value: str):
    place = {"environment": {"HUB": value}, "args": [f"hub={value}"]}
    found = check(changed(lambda c: c["jobs"][1].update(place)))
    assert "jobs.environment-secret" not in {problem.rule for problem in found}


@pytest.mark.parametrize(
    "name", ["NUM_KEYS", "KEYS", "EOS_TOKEN", "PAD_TOKEN", "NUM_TOKENS", "TOKENIZERS_PARALLELISM"]
)
def test_a_name_of_no_secret_is_free(name: str):
    found = check(changed(lambda c: c["jobs"][1].update(environment={name: "8"})))
    assert "jobs.environment-secret" not in {problem.rule for problem in found}


def test_a_place_of_ones_own_under_opt_and_in_mnt_is_free():
    def change(config: dict[str, Any]) -> None:
        config["storage"]["submounts"] = [
            {"name": "venv", "mount_path": "/opt/soperator", "size_gib": 10},
            {"name": "rooted", "mount_path": "/rooted", "size_gib": 10},
        ]

    assert "storage.path-reserved" not in {problem.rule for problem in check(changed(change))}


def test_many_sets_or_many_submounts_alone_break_nothing():
    """300 sets take 11 kB of the release, 200 submounts less: only their product does not fit."""
    for change in (sets(300), submounts(200)):
        assert "error" not in {str(problem.level) for problem in check(changed(change))}


def test_a_stack_name_of_33_characters_is_found(config: dict[str, Any]):
    """The name is that of the file, so no value of the configuration can be wrong."""
    assert [problem.rule for problem in check(load(config, "a" * 33))] == ["name.stack"]
    assert check(load(config, "a" * 32)) == ()


def test_every_rule_has_a_planted_mistake():
    lists = (
        *(ERRORS, WARNINGS, NODE_ERRORS, NODE_WARNINGS),
        *(SOPERATOR_ERRORS, SOPERATOR_WARNINGS, VERBATIM_ERRORS),
    )
    planted = [change for rows in lists for change, _, _ in rows]
    found = {problem.rule for change in planted for problem in check(changed(change))}
    tested = found | {rule for rule, _ in MISTAKES} | {rule for rule, _, _ in CHANGES}
    tested.add("name.stack")
    # tests/unit/attach has stacks of attached clusters.
    tested |= {"jobs.schedule-attached", "attached.nodes"}
    # No shipped platform is ARM yet: test_node_rules.py brings one.
    tested.add("nodes.architecture")
    assert set(RULES) - tested == set()


def test_a_table_with_an_id_twice_or_a_source_that_is_none_is_refused():
    row = "a.b\terror\tholds\tours: x\tis wrong"
    with pytest.raises(ValueError, match=r"rules.tsv:3: id 'a.b' is used twice"):
        read_rules(f"head\n{row}\n{row}\n")
    with pytest.raises(ValueError, match="'hearsay: y' names no source"):
        read_rules("head\na.b\terror\tholds\thearsay: y\tis wrong\n")


def test_another_name_of_a_platform_means_the_platform_of_the_api():
    """Seed 003 wrote gpu-h200; the API only knows gpu-h200-sxm."""
    spec = changed(
        lambda c: worker(c).update(
            platform="gpu-h200", preset="8gpu-128vcpu-1600gb", infiniband_fabric="fabric-7"
        )
    )
    assert spec.nodes.workers[0].platform == "gpu-h200-sxm"
    (problem,) = check(spec)
    assert problem.message == "'gpu-h200' is another name of 'gpu-h200-sxm'; write that"


def test_a_job_may_last_as_long_as_its_partition_allows():
    assert check(changed(partition(0, config="Default=YES MaxTime=60"))) == ()
    assert check(changed(partition(0, config="Default=YES MaxTime=UNLIMITED"))) == ()


def test_the_presets_that_could_join_a_fabric_are_named():
    (problem,) = [
        problem
        for problem in check(
            changed(lambda c: worker(c).update(preset="1gpu-16vcpu-200gb", infiniband_fabric=None))
        )
        if problem.rule == "nodes.ethernet"
    ]
    assert problem.message.endswith("; these can: 8gpu-128vcpu-1600gb")


@pytest.mark.parametrize("name", SHIPPED)
def test_no_chart_has_a_namespace_that_a_stack_may_declare(name: str, public_key_file: Path):
    """The stack makes its own namespace, and its destroy deletes it with all that is in it."""
    for namespace in {chart.namespace for chart in platform_charts(load_stack(name))}:
        spec = changed(lambda c, taken=namespace: c["cluster"].update(namespace=taken))
        assert "cluster.namespace-taken" in {problem.rule for problem in check(spec)}, namespace


def test_a_job_that_saves_within_the_notice_may_be_preempted() -> None:
    """60 s is also the default: a stack says nothing to be saved in time."""
    for saves in ({"save_s": 60}, {}):
        found = check(changed(preempted_training(**saves)))
        assert "jobs.save-notice" not in {each.rule for each in found}
