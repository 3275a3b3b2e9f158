"""An attached stack: its file keeps edits, its jobs name account and QOS, its nodes have a price.

No price is a state of its own: sums over such nodes are lower bounds, never 0.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import stacks.load
from cost.bill.bill import bill, render
from cost.prices.book import layered
from cost.report.layout import Format
from cost.resources.estimate import estimate
from cost.runs.budget import queue_charge
from cost.runs.forecast import UnknownRun, forecast, recipe_of
from cost.runs.ledger import Occupancy
from cost.runs.spend import JobUse, render_spend, spend
from cost.size.plan import make_plan
from cost.size.shape import SizeError
from infra.cli import context
from infra.cli.main import VERBS, app
from infra.clients.errors import JobsError
from infra.clients.pulumi import attached_outputs
from infra.clients.slurm import Accounted
from infra.clients.ssh import Endpoint
from infra.jobs.ledger import open_ledger, settle, uses_of
from infra.operate.attach import choose
from infra.operate.sessions import ask
from infra.render.delivery import code_files
from infra.render.sbatch import render_sbatch, render_search
from infra.render.stack_drawing import stack_svg
from infra.setup.project import stack_file
from infra.setup.project.stack_file import write_attached
from infra.state import CHECKOUT
from stacks.check import check
from stacks.errors import UserError
from stacks.load import StackError, load_config, load_stack
from stacks.machines import nodeset_of
from stacks.spec import StackSpec
from stacks.spec.slurm import SearchSpec, TrialSpec
from tests.unit.attach.test_discovery import AT, PARTITIONS, PARTS, found

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJGVJRcWE02OPAsk5Nx3B3O4RMs6uxZK6tZKMTZEYFN"
DOOR = Endpoint(
    host="login.example.org",
    port=22,
    user="ann",
    host_key=HOST_KEY,
    identity=Path("/home/me/.ssh/id_ed25519"),
)
PLACE = "/scratch/ann/soperator/lab"


Parts = dict[str, tuple[str, ...]]


def attached(folder: Path, **parts: tuple[str, ...]) -> tuple[Path, StackSpec]:
    seen = found(**parts)
    path, _, spec = write_attached(folder, "lab", DOOR, PLACE, seen, choose(seen, AT))
    return path, spec


def config(folder: Path, parts: Parts | None = None, **changes: object) -> dict[str, Any]:
    """The configuration of the file that attach writes, with these keys changed."""
    path, _ = attached(folder, **(parts or {}))
    document = yaml.safe_load(path.read_text(encoding="utf-8"))["config"]
    return {**document, **{f"soperator-stack:{key}": value for key, value in changes.items()}}


@pytest.mark.parametrize("kind", ["3090", "1e3", "0x1F"])
def test_gpus_that_are_called_by_a_number_are_a_nodeset_with_a_name(
    tmp_path: Path, kind: str
) -> None:
    nodes = (f"gpu01|main|main*|64|380000|infinite|idle|gpu:{kind}:4",)
    _, spec = attached(tmp_path, nodes=nodes)
    assert spec.attached is not None
    (nodeset,) = spec.attached.nodesets
    assert (nodeset.name, nodeset.gpu_type) == (f"gpu-{kind.lower()}", kind)
    assert spec.chat.serving_nodeset == nodeset.name


def test_an_attach_that_is_interrupted_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = attached(tmp_path)
    before = path.read_text(encoding="utf-8")

    def interrupted(*_: object) -> StackSpec:
        raise KeyboardInterrupt

    monkeypatch.setattr(stack_file, "load_stack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attached(tmp_path, version=("slurm 25.11.1",))
    assert path.read_text(encoding="utf-8") == before


def test_a_stack_file_of_another_encoding_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = attached(tmp_path)
    path.write_bytes(path.read_bytes() + b"# caf\xe9\n")
    monkeypatch.setattr(stacks.load, "STACKS_DIR", tmp_path)
    done = CliRunner().invoke(app, ["attach", "ann@login.example.org", "--stack", "lab"])
    assert f"{path} cannot be read" in " ".join(done.stderr.split())


def test_what_no_terminal_shows_makes_a_file_that_loads(tmp_path: Path) -> None:
    _, spec = attached(tmp_path, quota=("blocks \x1b[31m \x7f",), version=("slurm 25.11.1\x1b",))
    assert spec.attached is not None
    assert spec.attached.slurm == r"25.11.1\x1b"


def test_the_file_says_what_was_found_and_loads_without_a_problem(tmp_path: Path) -> None:
    path, spec = attached(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert text.isascii()
    assert "# accounts with their QOS: chem (normal), phys (long, normal) (default chem)" in text
    assert "# host key SHA256:" in text
    assert spec.attached is not None
    assert [(each.name, each.nodes) for each in spec.attached.nodesets] == [
        ("nvidia-l40s", "gpu[01-02]"), ("cpu", "c9"),
    ]  # fmt: skip
    assert (spec.charge.account, spec.charge.qos) == ("phys", "long")
    assert [str(problem) for problem in check(spec)] == []
    assert nodeset_of(spec, "gpu02") == "nvidia-l40s"
    assert nodeset_of(spec, "gpu03") == ""


def test_attaching_again_writes_what_changed_and_keeps_every_edit(tmp_path: Path) -> None:
    path, _ = attached(tmp_path)
    text = path.read_text(encoding="utf-8")
    edited = text.replace("prices: nebius", "prices: nebius  # mine").replace(
        "node_prices: []",
        'node_prices: [{nodeset: cpu, usd_per_node_hour: 2, source: c, date: "2026-11-01"}]',
    )
    path.write_text(edited, encoding="utf-8")
    _, spec = attached(tmp_path, version=("slurm 25.11.1",))
    after = path.read_text(encoding="utf-8")
    assert 'slurm: "25.11.1"' in after
    assert after.split(stack_file._END)[1] == edited.split(stack_file._END)[1]
    assert [each.nodeset for each in spec.node_prices] == ["cpu"]
    attached(tmp_path, version=("slurm 25.11.1",))
    assert path.read_text(encoding="utf-8") == after


def test_an_edit_of_what_was_found_is_not_overwritten(tmp_path: Path) -> None:
    path, _ = attached(tmp_path)
    edited = path.read_text(encoding="utf-8").replace("cpus: 64", "cpus: 32")
    path.write_text(edited, encoding="utf-8")
    with pytest.raises(JobsError, match=r"were edited.*move your edits below"):
        attached(tmp_path)
    assert path.read_text(encoding="utf-8") == edited


def test_a_price_of_nodes_that_are_gone_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path, _ = attached(tmp_path)
    edited = path.read_text(encoding="utf-8").replace(
        "node_prices: []",
        'node_prices: [{nodeset: cpu, usd_per_node_hour: 2, source: c, date: "2026-11-01"}]',
    )
    path.write_text(edited, encoding="utf-8")
    gpus = tuple(line for line in found_nodes() if line.startswith("gpu"))
    with pytest.raises(StackError, match="'cpu' is not a nodeset of the cluster"):
        attached(tmp_path, nodes=gpus)
    assert path.read_text(encoding="utf-8") == edited


def found_nodes() -> tuple[str, ...]:
    from tests.unit.attach.test_discovery import PARTS

    return PARTS["nodes"]


def test_a_stack_that_is_built_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.lab.yaml").write_text("config: {}\n", encoding="utf-8")
    with pytest.raises(JobsError, match="not the file of an attached cluster"):
        attached(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nebius": {}}, "lab.nebius: the stack is attached"),
        ({"storage": {"jail": {}}}, "an attached stack has places alone"),
        ({"storage": {"places": {"dta": "/x"}}}, None),
        ({"node_prices": [{"nodeset": "gpux", "usd_per_node_hour": 1}]}, "is not a nodeset"),
        ({"node_prices": [{"nodeset": "cpu"}]}, "one of the three"),
        (
            {"node_prices": [{"nodeset": "cpu", "usd_per_node_hour": 1, "usd_per_gpu_hour": 1}]},
            "one of the three",
        ),
        ({"node_prices": [{"nodeset": "cpu", "usd_per_gpu_hour": 1}]}, "have no GPU"),
        ({"node_prices": [{"nodeset": "cpu", "usd_per_node_hour": 1}]}, "give source and date"),
        (
            {"node_prices": [{"nodeset": "cpu", "platform": "gpu-h100-sxm", "preset": "x"}]},
            "not a platform with a preset of 0 GPUs",
        ),
    ],
)
def test_what_an_attached_stack_cannot_say_is_refused_with_its_path(
    tmp_path: Path, changes: dict[str, object], words: str | None
) -> None:
    given = config(tmp_path, **changes)
    if words is None:
        assert any("unknown place" in str(each) for each in check(load_config(given, "lab")))
        return
    with pytest.raises(StackError) as caught:
        load_config(given, "lab")
    assert words in str(caught.value)


def test_a_key_that_attach_once_wrote_is_refused_as_gone(tmp_path: Path) -> None:
    """It was an unknown key, which is what a slip of the hand is called."""
    given = config(tmp_path)
    given["soperator-stack:attached"]["scrontab"] = True
    with pytest.raises(StackError, match=r"lab\.attached\.scrontab: gone, .*; delete the line"):
        load_config(given, "lab")


@pytest.mark.parametrize("nodes", ["gpu[16-01]", "gpu[01-", "gpu[a]"])
def test_nodes_that_are_no_list_are_refused_with_their_path(tmp_path: Path, nodes: str) -> None:
    """They were first read where a job's node was looked for, and that error named no key."""
    given = config(tmp_path)
    given["soperator-stack:attached"]["nodesets"][0]["nodes"] = nodes
    (problem,) = check(load_config(given, "lab"))
    assert (problem.rule, problem.path) == ("attached.nodes", "lab.attached.nodesets[0].nodes")
    assert f"{nodes!r} is not a list of names; write what sinfo shows" in problem.message


def test_a_schedule_is_refused_where_nothing_writes_it(tmp_path: Path) -> None:
    job = {"name": "look", "module": "workloads.look", "recipe": "look", "partition": "main"}
    spec = load_config(config(tmp_path, jobs=[{**job, "schedule": "@daily"}]), "lab")
    assert [each.rule for each in check(spec)] == ["jobs.schedule-attached"]


def test_only_a_training_is_asked_for_tokens(tmp_path: Path) -> None:
    """The first submissions told the user to declare the tokens of a look and a load test."""
    _, spec = attached(tmp_path)
    ledger = open_ledger(spec, tmp_path, lambda _line: None)
    told = {job.name: str(ledger.forecast(job)) for job in spec.jobs}
    assert told["look"] == "NOT KNOWN: look trains on no tokens; its limit is 00:05:00"
    assert [name for name, text in told.items() if "tokens_per_epoch" in text] == ["finetune"]


def test_jobs_name_account_qos_and_gpus_as_any_slurm_takes_them(tmp_path: Path) -> None:
    _, spec = attached(tmp_path)
    look, tune = spec.jobs[0], next(job for job in spec.jobs if job.name == "finetune")
    text = render_sbatch(spec, tune)
    for option in ("--account=phys", "--qos=long", "--gres=gpu:1", "--partition=main"):
        assert f"#SBATCH {option}\n" in text
    assert "--gpus-per-node" not in text
    assert "NCCL_IB_DISABLE" not in text, "only the site knows its network"
    assert "/home/$user" not in text
    assert f"own_code={PLACE}/code\n" in text
    assert "|| SOPERATOR_PYTHON=/usr/bin/python3.11" in render_sbatch(spec, look)
    assert "|| SOPERATOR_PYTHON" not in text, "a training says that its environment is missing"
    search = SearchSpec(
        name="s", job="look", metric="num_cpus", trials=(TrialSpec(settings=("description=a",)),)
    )
    assert "#SBATCH --account=phys" in render_search(replace(spec, searches=(search,)), search)
    hardware = [line for line in text.splitlines() if "gpu01" in line or "c9" in line]
    assert len(hardware) == 0, "one nodeset has GPUs, so nothing is told apart"
    case = render_sbatch(spec, look)
    assert "  gpu01|gpu02) export SOPERATOR_PLATFORM=slurm-nvidia-l40s" in case
    assert "  c9) export SOPERATOR_PLATFORM=slurm-cpu SOPERATOR_PRESET=32vcpu-1gb ;;" in case


def test_memory_that_slurm_does_not_count_is_not_asked_for(tmp_path: Path) -> None:
    nodes = tuple(line.replace("|380000|", "|1|") for line in found_nodes())
    _, spec = attached(tmp_path, nodes=nodes)
    tune = next(job for job in spec.jobs if job.name == "finetune")
    assert "--mem" not in render_sbatch(spec, tune)
    rates = estimate(spec, layered(spec))
    session = ask(rates, gpus=1, cpus=None, partition="main", hours=1)
    assert "--mem" not in session.srun("true")
    assert "--gres=gpu:1 --account=phys --qos=long" in session.srun("true")


def priced(folder: Path, *prices: dict[str, object]) -> StackSpec:
    return load_config(config(folder, node_prices=list(prices)), "lab")


CONTRACT = {"source": "contract 12", "date": "2026-11-01"}


@pytest.mark.parametrize(
    ("price", "usd_per_node_hour"),
    [
        ({"usd_per_node_hour": 12.5, **CONTRACT}, Decimal("12.5")),
        ({"usd_per_gpu_hour": Decimal("1.55"), **CONTRACT}, Decimal("3.10")),
        ({"platform": "gpu-l40s-d", "preset": "2gpu-64vcpu-384gb"}, None),
    ],
)
def test_a_node_costs_what_is_declared(
    tmp_path: Path, price: dict[str, object], usd_per_node_hour: Decimal | None
) -> None:
    spec = priced(tmp_path, {"nodeset": "nvidia-l40s", **price})
    book = layered(spec)
    rates = estimate(spec, book)
    found_usd = rates.node_usd_per_hour["nvidia-l40s"]
    if usd_per_node_hour is None:
        built = load_stack("local", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": __file__})
        book = layered(replace(built, prices="nebius"))
        rate = estimate(built, book).node_usd_per_hour["worker"]
        assert found_usd == rate
        assert spec.nodes.workers[0].platform == "gpu-l40s-d"
    else:
        assert found_usd == usd_per_node_hour
    assert rates.node_usd_per_hour["cpu"] is None
    assert rates.total.is_lower_bound


def test_a_limit_that_is_broken_is_refused_without_other_hardware(tmp_path: Path) -> None:
    """Nodes of others have no presets to choose from; the search for one ended in a traceback."""
    price = {"nodeset": "nvidia-l40s", "usd_per_node_hour": 12.5, **CONTRACT}
    policy = {"max_usd_per_month": 1}
    spec = load_config(config(tmp_path, node_prices=[price], policy=policy), "lab")
    (problem,) = bill(spec, layered(spec)).errors
    assert problem.path == "lab.policy.max_usd_per_month"
    assert problem.message.endswith("; raise the limit or declare less")


def test_an_unpriced_node_is_never_0(tmp_path: Path) -> None:
    _, spec = attached(tmp_path)
    text = render(bill(spec, layered(spec)))
    assert text.count("UNPRICED") == 6
    assert "Total, at least" in text
    assert "no price of nodeset 'cpu' is declared; give one in node_prices" in text
    assert "lso billed" not in text
    whole = priced(tmp_path, full("cpu"), full("nvidia-l40s"))
    priced_text = render(bill(whole, layered(whole)))
    assert "UNPRICED" not in priced_text
    assert "at least" not in priced_text.split("Cost per run")[0]


def test_a_training_on_gpus_of_unknown_memory_has_no_plan_and_is_not_refused(
    tmp_path: Path,
) -> None:
    _, spec = attached(tmp_path)
    files = code_files(CHECKOUT, spec)
    tune = next(job for job in spec.jobs if job.name == "finetune")
    with pytest.raises(SizeError, match=r"slurm-nvidia-l40s is not known.*node_prices"):
        make_plan(spec, tune, recipe_of(tune, files))
    as_l40s = {"nodeset": "nvidia-l40s", "platform": "gpu-l40s-d", "preset": "2gpu-64vcpu-384gb"}
    make_plan(priced(tmp_path, as_l40s), tune, recipe_of(tune, files))
    cpu = replace(tune, gpus_per_node=0, cpus_per_task=1)
    make_plan(spec, cpu, recipe_of(cpu, files))


def full(nodeset: str) -> dict[str, object]:
    return {"nodeset": nodeset, "usd_per_node_hour": 8, **CONTRACT}


START = datetime(2026, 11, 1, tzinfo=UTC)


def use(node: str, *, cpus: int, gpus: int = 0) -> JobUse:
    hour = Occupancy(started_at=START, ended_at=START + timedelta(hours=1), nodes=(node,))
    return JobUse(
        cluster=HOST_KEY,
        job_id="1" if gpus else "2",
        job="look",
        user="ann",
        partition="main",
        state="COMPLETED",
        is_finished=True,
        runs=(hour,),
        cpus_per_node=cpus,
        gpus_per_node=gpus,
    )


def test_a_job_pays_its_share_of_a_node_and_idle_nodes_are_others(tmp_path: Path) -> None:
    """Who else was on the node is not ours to see: half of its GPUs is half of its price."""
    spec = priced(tmp_path, full("nvidia-l40s"))
    rates = estimate(spec, layered(spec))
    period = {"since": START, "until": START + timedelta(hours=10)}
    found_spend = spend(rates, (use("gpu01", cpus=4, gpus=1),), **period)
    assert found_spend.jobs_usd == 4
    assert (found_spend.idle_usd, found_spend.extra_nodes_usd, found_spend.bill_usd) == (0, 0, 4)
    both = spend(rates, (use("gpu01", cpus=4, gpus=1), use("c9", cpus=32)), **period)
    assert both.is_lower_bound
    text = render_spend(both, Format.TABLE)
    assert "$4.00 at least" in text
    alone = spend(rates, (use("c9", cpus=32),), **period)
    text = render_spend(alone, Format.TABLE)
    assert [line.split()[1] for line in text.splitlines() if line.startswith("jobs")] == ["unknown"]


@pytest.mark.parametrize(("gpus", "cpus"), [(1, None), (1, 48), (0, 16), (2, None)])
def test_a_forecast_charges_what_spend_charges_of_the_same_job(
    gpus: int, cpus: int | None, tmp_path: Path
) -> None:
    """An hour, its limit, on the CPUs and GPUs that its batch script asks for."""
    spec = priced(tmp_path, full("nvidia-l40s"))
    (job,) = (each for each in spec.jobs if each.name == "look")
    job = replace(job, gpus_per_node=gpus, cpus_per_task=cpus, time_limit="01:00:00")
    spec = replace(spec, nodes=replace(spec.nodes, workers=spec.nodes.workers[:1]))
    asked = re.findall(r"--cpus-per-task=(\d+)|--gres=gpu:(\d+)", render_sbatch(spec, job))
    num_cpus, num_gpus = (max(int(each[n] or 0) for each in asked) for n in (0, 1))
    assert num_gpus == gpus
    rates = estimate(spec, layered(spec))
    run = forecast(job, rates, ())
    assert isinstance(run, UnknownRun)
    period = {"since": START, "until": START + timedelta(hours=10)}
    charged = spend(rates, (use("gpu01", cpus=num_cpus, gpus=num_gpus),), **period)
    assert run.at_most_usd == charged.jobs_usd > 0
    whole = spend(rates, (use("gpu01", cpus=64, gpus=2),), **period).jobs_usd
    assert (run.at_most_usd == whole) == (gpus == 2)


@pytest.mark.parametrize(
    ("parts", "usd_elsewhere"),
    [
        ({"partitions": (f"{PARTITIONS[0]} OverSubscribe=EXCLUSIVE", PARTITIONS[1])}, 4),
        ({"config": (*PARTS["config"], "SelectType              = select/linear")}, 8),
    ],
)
def test_where_slurm_gives_whole_nodes_every_price_is_of_whole_nodes(
    parts: Parts, usd_elsewhere: int, tmp_path: Path
) -> None:
    """A forecast said half of what the same hour was then charged, and a budget let it in by that.

    Two of the CPUs that a node has belong to Slurm's own daemons (CoreSpecCount).
    """
    document = config(tmp_path, parts, node_prices=[full("nvidia-l40s"), full("cpu")])
    spec = load_config(document, "lab")
    rates = estimate(spec, layered(spec))
    look = next(job for job in spec.jobs if job.name == "look")
    usd = {}
    for name in ("main", "debug"):
        job = replace(look, partition=name, gpus_per_node=1, time_limit="01:00:00")
        run = forecast(job, rates, ())
        assert isinstance(run, UnknownRun)
        usd[name] = run.at_most_usd
    assert usd == {"main": 8, "debug": usd_elsewhere}
    asked = ask(rates, gpus=0, cpus=1, partition="main", hours=1)
    assert asked.usd_per_hour == 8
    period = {"since": START, "until": START + timedelta(hours=10)}
    assert spend(rates, (use("gpu01", cpus=62, gpus=1),), **period).jobs_usd == 8
    ran = use("c9", cpus=1)
    waits = replace(ran, state="PENDING", is_finished=False, runs=(), num_nodes=1, limit_s=3600)
    assert queue_charge(rates, waits, START).usd == 8


def test_a_job_that_slurm_forgot_still_costs_what_it_cost(tmp_path: Path) -> None:
    """Half a node: from the ledger alone it was priced as if it had had one CPU."""
    books = open_ledger(priced(tmp_path, full("nvidia-l40s")), tmp_path / "state", print)
    ran = use("gpu01", cpus=4, gpus=1)
    ended = START + timedelta(hours=10)
    told = Accounted(uses=(ran,), has_accounting=False)
    with books.file.locked() as opened:
        (entry,) = settle(opened, told, books, since=START, now=ended)
        content = opened.read()
    period = {"since": START, "until": ended}
    found_spend = spend(books.rates, uses_of(content.entries, but=frozenset()), **period)
    assert found_spend.jobs_usd == entry.nodes_usd == 4


def test_the_drawing_shows_what_is_known_and_no_infrastructure(tmp_path: Path) -> None:
    _, spec = attached(tmp_path)
    text = stack_svg(spec)
    assert "login node login.example.org" in text
    assert "2 nodes gpu[01-02]" in text
    assert "Nebius" not in text
    assert "Kubernetes" not in text


def test_everything_lies_below_the_folder_of_the_user(tmp_path: Path) -> None:
    _, spec = attached(tmp_path)
    outputs = attached_outputs(spec)
    paths = [*outputs.places.values(), outputs.own_path, spec.python_env_path]
    assert all(path.startswith(f"{PLACE}/") for path in paths)
    assert outputs.endpoint(DOOR.identity).user == "ann"
    assert not outputs.endpoint(DOOR.identity).is_built


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackSpec:
    """The stack `lab` where commands look for stack files."""
    _, spec = attached(tmp_path)
    monkeypatch.setattr(stacks.load, "STACKS_DIR", tmp_path)
    monkeypatch.setattr(context, "spec", lambda name: load_stack(name, tmp_path))
    return spec


@pytest.mark.usefixtures("lab")
def test_doctor_looks_at_the_login_node_and_at_nothing_of_a_cloud(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It failed for want of pulumi, a passphrase and a token of Nebius."""

    def refuse(*_: object) -> None:
        raise JobsError("login.example.org: no answer")

    monkeypatch.setattr(context, "connect", refuse)
    done = CliRunner().invoke(app, ["doctor", "-s", "lab", "--format", "json"])
    assert done.exit_code == 1
    failed = {
        each["check"]: each["seen"] for each in json.loads(done.stdout) if each["outcome"] == "FAIL"
    }
    assert failed == {
        "SSH key": f"{DOOR.identity} is missing",
        "login node": "login.example.org: no answer",
    }


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "pause"),
        ("cluster", "resume"),
        ("cluster", "autostop"),
        ("cluster", "drain", "gpu01", "--reason", "x"),
        ("cluster", "destroy"),
        ("cluster", "orphans"),
        ("cluster", "adopt", "filesystem", "id", "--as", "jail"),
        ("cluster", "backup"),
        ("cluster", "restore"),
        ("cluster", "support-bundle"),
        ("ssh", "--root"),
        ("cost", "--alternatives"),
    ],
)
def test_what_needs_infrastructure_is_refused_in_one_line(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--stack", "lab"])
    assert done.exit_code == 1, done.output
    (line,) = done.stderr.splitlines()
    assert "lab: " in line
    assert "ask its administrators" in line


def test_every_command_of_a_cluster_is_either_refused_or_needs_no_infrastructure() -> None:
    """A new command of the group is put on one side or the other."""
    from infra.cli.main import _OF_WHAT_IS_BUILT

    free = {"cluster accept", "cluster accept-hosts", "cluster draw"}
    every = {words for words in VERBS if words.startswith("cluster ")}
    assert every == free | _OF_WHAT_IS_BUILT


@pytest.mark.usefixtures("lab")
def test_a_broken_file_is_told_as_such_and_not_as_a_stack_that_is_not_up(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.lab.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "  soperator-stack:jbos: []\n")
    with pytest.raises(UserError, match="jbos: unknown key; did you mean 'jobs'"):
        context.caller("lab", None)
