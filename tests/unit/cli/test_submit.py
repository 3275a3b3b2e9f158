"""`soperator submit` of pipelines and searches, and the leaderboard: what is said and sent."""

from __future__ import annotations

import json
import re
import shlex
import signal
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from infra.cli import context
from infra.cli.main import app
from infra.clients.ssh import Result as Ran
from infra.jobs import history
from infra.jobs.history import Submission
from infra.render.delivery import code_files, hash_files
from stacks.load import STACKS_DIR, load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import BudgetSpec, RunForecastSpec
from stacks.spec.slurm import AxisSpec, SearchSpec, TrialSpec
from tests.unit.jobs.test_submit import OUTPUTS

SEARCH = SearchSpec(
    name="lr",
    job="finetune",
    metric="last_loss",
    grid=(AxisSpec(key="train.learning_rate", values=("1e-4", "2e-4")),),
)


def held(job_id: str) -> str:
    """The queue's row of a job that waits to be let go."""
    return f"{job_id}|{job_id}|ann|red|main|PENDING|N/A|N/A|1|N/A||1|1:00|JobHeldUser|job\n"


class Cluster:
    """A login node that numbers what is submitted; jobs stay in the queue."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sent: list[str] = []
        self.results = ""
        self.queue = ""
        self.released: list[str] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, command: str, *, stdin: bytes = b"") -> Ran:
        self.asked.append(command)
        text = ""
        if "submit_once sbatch" in command:
            self.sent.append(command.partition("submit_once ")[2])
            text = f"{11 + len(self.sent)}\n"
        elif "--test-only" in command:
            shown = "releases/0123\n#!/bin/bash\n"
            return Ran(command=command, exit_code=0, stdout=shown, stderr="at 08:00")
        elif command.startswith("scontrol show job"):
            number = int(re.findall(r"\d+", command)[0])
            name = self.sent[number - 12].split("jobs/")[1].split()[0]
            text = f"JobId={number} JobName={name} JobState=PENDING Reason=None ExitCode=0:0\n"
        elif command == "bash -s":
            text = self.results
        elif "squeue" in command and "sacct" in command:
            text = f"{self.queue}--\n"
        elif "scontrol release" in command:
            self.released.append(command.split()[-1])
        elif "JobHeldUser" not in self.queue and command.startswith("export TZ=UTC0"):
            text = held(f"{11 + len(self.sent)}")
        return Ran(command=command, exit_code=0, stdout=text, stderr="")


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return replace(load_stack("local"), searches=(SEARCH,))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: StackSpec) -> Cluster:
    made = Cluster()
    outputs = replace(OUTPUTS, jobs={**OUTPUTS.jobs, "lr": ""})
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: outputs)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: made)
    monkeypatch.setattr("infra.cli.context.spec", lambda _stack: spec)
    return made


def variables_of(sbatch: str) -> dict[str, str]:
    """What an sbatch line hands to its job."""
    (exported,) = [word for word in shlex.split(sbatch) if word.startswith("--export=ALL,")]
    return dict(each.split("=", 1) for each in exported.split(",")[1:])


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_pipeline_is_priced_and_sent_in_order_and_once(cluster: Cluster) -> None:
    done = run("submit", "finetune", "--pipeline", "--set", "finetune:train.max_steps=8")
    assert done.exit_code == 0, done.output
    assert "Pipeline prepare-data -> finetune: at most 0.83 h and $6.09" in done.stderr
    assert [each.split("jobs/")[1] for each in cluster.sent] == [
        "prepare-data",
        "finetune --set train.max_steps=8",
    ]
    assert "--dependency=afterok:12 --kill-on-invalid-dep=yes" in cluster.sent[1]
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["12", "prepare-data", "-", "now"],
        ["13", "finetune", "12", "now"],
    ]
    again = run("submit", "finetune", "--pipeline", "--set", "finetune:train.max_steps=8")
    assert (again.exit_code, len(cluster.sent)) == (0, 2), again.output
    assert again.stdout.count("before") == 2


@pytest.mark.feature("S001-81")
def test_a_dry_run_of_a_pipeline_queues_nothing(cluster: Cluster) -> None:
    done = run("submit", "finetune", "--pipeline", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("#!/bin/bash") == 2
    assert "'--dependency=afterok:$PREPARE_DATA'" in done.stdout
    assert cluster.sent == []


@pytest.mark.feature("S001-81")
def test_a_dry_run_as_json_shows_job_file_configuration_and_sharding(cluster: Cluster) -> None:
    words = ("--dry-run", "--format", "json", "--set", "train.max_steps=8")
    found = json.loads(run("submit", "finetune", *words).stdout)
    (shown,) = re.findall(r"# sbatch --parsable (.*)", found["script"])
    assert shown.endswith(" jobs/finetune --set train.max_steps=8")
    assert found["config"]["train"]["max_steps"] == 8
    assert found["plan"]["strategy"] == "ddp"
    assert "# The cluster has code 0123, this checkout is " in found["script"]
    assert cluster.sent == []
    assert run("submit", "finetune", *words[3:]).exit_code == 0
    assert variables_of(cluster.sent[0]) == variables_of(shown)
    assert {"SOPERATOR_RELEASE", "SOPERATOR_PLAN"} <= variables_of(shown).keys()


def test_a_dry_run_of_a_search_shows_the_variables_of_every_trial(cluster: Cluster) -> None:
    (shown,) = re.findall(r"# sbatch --parsable (.*)", run("submit", "lr", "--dry-run").stdout)
    assert run("submit", "lr").exit_code == 0
    assert variables_of(cluster.sent[0]) == variables_of(shown)
    assert {"SOPERATOR_RELEASE", "SOPERATOR_PLAN_0", "SOPERATOR_PLAN_1"} <= variables_of(
        shown
    ).keys()


def test_everything_that_is_wrong_with_a_pipeline_is_said_at_once(cluster: Cluster) -> None:
    sets = ("prepare-data:data.x=1", "finetune:train.x=1")
    done = run("submit", "finetune", "--pipeline", *(w for s in sets for w in ("--set", s)))
    assert done.exit_code == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("soperator: ")]
    assert [line.split(":")[1].strip() for line in lines] == ["prepare-data", "finetune"]
    assert cluster.asked == []


def test_a_pipeline_that_the_month_has_no_room_for_sends_no_job_of_it(
    cluster: Cluster, spec: StackSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of = RunForecastSpec(
        job="finetune", tokens_per_epoch=3_600_000, train_tokens_per_s=Decimal(100), source="a test"
    )
    poor = replace(spec, runs=(run_of,), budget=BudgetSpec(usd_per_month=Decimal(90)))
    monkeypatch.setattr("infra.cli.context.spec", lambda _stack: poor)
    done = run("submit", "finetune", "--pipeline")
    assert done.exit_code == 1
    assert "pipeline to finetune: the forecast of $91.38 is more than what is left" in done.stderr
    assert cluster.sent == []


def test_the_same_job_twice_is_one_submission_until_asked_for_again(cluster: Cluster) -> None:
    first, second = run("submit", "finetune"), run("submit", "finetune")
    assert (first.stdout, second.stdout) == ("12\n", "12\n"), second.output
    assert "--again submits it once more" in second.stderr
    other = run("submit", "finetune", "--set", "train.max_steps=8")
    assert other.stdout == "13\n"
    assert run("submit", "finetune", "--again").stdout == "14\n"


def test_ctrl_c_waits_until_the_job_is_written_down(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = cluster.run

    def interrupted(command: str, *, stdin: bytes = b"") -> Ran:
        if "submit_once sbatch" in command:
            signal.raise_signal(signal.SIGINT)
        return send(command, stdin=stdin)

    monkeypatch.setattr(cluster, "run", interrupted)
    assert run("submit", "finetune").exit_code != 0
    assert [each.job_id for each in history.submissions(tmp_path, "local")] == ["12"]


def test_a_search_is_one_array_and_says_what_all_of_it_costs(cluster: Cluster) -> None:
    done = run("submit", "lr")
    assert (done.exit_code, done.stdout) == (0, "12\n"), done.output
    assert "Search lr: 2 trials of finetune, 1 at once: the forecast is not known" in done.stderr
    (command,) = cluster.sent
    assert "--array=0,1%1" in command


def test_a_search_over_its_limit_is_refused_in_the_dry_run_too(
    cluster: Cluster, spec: StackSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = replace(spec, searches=(replace(SEARCH, max_usd=Decimal(1)),))
    monkeypatch.setattr("infra.cli.context.spec", lambda _stack: over)
    for words in ((), ("--dry-run",)):
        done = run("submit", "lr", *words)
        assert done.exit_code == 1
        assert "is over searches.lr.max_usd $1.00" in done.stderr
    assert cluster.sent == []


def test_a_setting_that_the_job_does_not_know_is_refused_for_every_trial_at_once(
    cluster: Cluster, spec: StackSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = (AxisSpec(key="train.x", values=("1", "2")), AxisSpec(key="train.y", values=("1",)))
    wrong = replace(spec, searches=(replace(SEARCH, grid=axes),))
    monkeypatch.setattr("infra.cli.context.spec", lambda _stack: wrong)
    done = run("submit", "lr")
    assert done.exit_code == 1
    assert "train.x" in done.stderr
    assert "train.y" in done.stderr
    assert cluster.sent == []


def test_a_trial_is_refused_or_taken_with_all_of_its_settings_together(
    cluster: Cluster, spec: StackSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """qlora takes no fp32, so its trials are right only where they change that as well."""
    wrong = TrialSpec(settings=("train.method=qlora", "train.dtype=fp32"))
    good = TrialSpec(settings=("train.dtype=bf16", "train.method=qlora"))
    for trials, code in (((wrong, good), 1), ((good,), 0)):
        of = replace(SEARCH, trials=trials)
        monkeypatch.setattr(
            "infra.cli.context.spec", lambda _, of=of: replace(spec, searches=(of,))
        )
        done = run("submit", "lr", "--set", "train.dtype=fp32")
        assert done.exit_code == code, done.output
        assert ("trial 2 (train.method=qlora train.dtype=fp32): " in done.stderr) == bool(code)
    assert len(cluster.sent) == 1


def remembered(state: Path, spec: StackSpec) -> None:
    made = Submission(
        stack="local",
        job="lr",
        job_id="12",
        code_hash=hash_files(code_files(STACKS_DIR.parent, spec)),
        sets=(),
        after=None,
        log_path="",
        submitted_at="2026-11-21T08:00:00+00:00",
        cluster=OUTPUTS.login_host_key,
    )
    history.remember(state, made)


def test_only_trials_that_did_not_pass_are_sent_again(
    cluster: Cluster, spec: StackSpec, tmp_path: Path
) -> None:
    remembered(tmp_path, spec)
    cluster.results = trial("13", SEARCH.settings[0], {"outcome": "PASS"})
    done = run("submit", "lr")
    assert done.exit_code == 0, done.output
    assert "--array=1%1" in cluster.sent[0]
    assert "lr: 1 trials are done or on their way" in done.stderr


def test_what_a_program_reads_of_a_dry_run_and_of_a_search_that_is_done_is_json(
    cluster: Cluster, spec: StackSpec, tmp_path: Path
) -> None:
    for words in (("lr",), ("finetune", "--pipeline")):
        shown = json.loads(run("submit", *words, "--dry-run", "--format", "json").stdout)
        assert "sbatch --parsable" in shown["script"]
    remembered(tmp_path, spec)
    for job_id, settings in zip(("13", "14"), SEARCH.settings, strict=True):
        cluster.results += trial(job_id, settings, {"outcome": "PASS"})
    done = run("submit", "lr", "--format", "json")
    assert (json.loads(done.stdout)["job_id"], cluster.sent) == (None, [])


def test_a_metric_that_no_record_has_is_told_apart_from_a_trial_to_submit_again(
    cluster: Cluster,
) -> None:
    for job_id, settings in zip(("13", "14"), SEARCH.settings, strict=True):
        cluster.results += trial(job_id, settings, {"outcome": "PASS", "metrics": {}})
    done = run("runs", "leaderboard", "lr")
    assert "name a metric of it in searches.lr.metric" in done.stderr
    assert "submitted again by" not in done.stderr


def trial(job_id: str, settings: tuple[str, ...], record: dict[str, object]) -> str:
    mark = {"search": "lr", "array": "12", "trial": 0, "settings": settings}
    return f"{job_id}\n{json.dumps(mark)}\n{json.dumps(record)}\n"


def test_the_leaderboard_ranks_and_gives_the_words_of_the_best(cluster: Cluster) -> None:
    cluster.results = trial(
        "13", SEARCH.settings[0], {"outcome": "PASS", "metrics": {"last_loss": 2.5}}
    ) + trial("14", SEARCH.settings[1], {"outcome": "FAIL", "reason": "loss is NaN", "metrics": {}})
    done = run("runs", "leaderboard", "lr")
    assert done.exit_code == 0, done.output
    rows = done.stdout.splitlines()
    assert rows[0].split()[:3] == ["RANK", "TRIAL", "LAST_LOSS"]
    assert rows[1].split()[:3] == ["1", "0", "2.5"]
    assert "FAIL: loss is NaN" in rows[2]
    assert "--set train.learning_rate=1e-4" in done.stderr
    assert "submitted again by: soperator submit lr -s local" in done.stderr
    plain = json.loads(run("runs", "leaderboard", "lr", "--format", "json").stdout)
    assert [row["rank"] for row in plain["trials"]] == [1, None]


@pytest.mark.feature("S002-88")
def test_a_cancelled_job_takes_along_what_waits_for_its_success(cluster: Cluster) -> None:
    run("submit", "finetune", "--pipeline")
    times = "0:00|2026-11-21T05:00:00|N/A"
    cluster.queue = (
        f"12|prepare-data|PENDING|{times}|(null)|(Resources)\n"
        f"13|finetune|PENDING|{times}|afterok:12(unfulfilled)|(Dependency)\n"
        f"14|other|PENDING|{times}|(null)|(Resources)\n"
    )
    done = run("cancel", "12")
    assert done.exit_code == 0, done.output
    assert "scancel 12 13" in cluster.asked
    assert "finetune (13) waits for its success and is ended with it" in done.stderr


@pytest.mark.feature("S001-32", "S002-44")
def test_the_list_of_jobs_names_what_one_waits_for(cluster: Cluster) -> None:
    times = "0:00|2026-11-21T05:00:00|N/A"
    cluster.queue = (
        f"12|prepare-data|RUNNING|{times}|(null)|worker-0\n"
        f"13|finetune|PENDING|{times}|afterok:12(unfulfilled)|(Dependency)\n"
    )
    done = run("status", "--mine")
    assert "waits until prepare-data (12) succeeded; if it fails, this one is" in done.stdout
    assert any(command.startswith("squeue --me ") for command in cluster.asked)


def test_a_search_that_is_not_declared_is_refused_with_the_nearest_name(cluster: Cluster) -> None:
    done = run("runs", "leaderboard", "lrs")
    assert done.exit_code == 1
    assert "'lrs' is not declared; did you mean 'lr'?" in done.stderr


@pytest.mark.parametrize("is_attached", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_code_is_sent_where_it_is_asked_for_and_where_nobody_else_delivers(
    sync: bool, is_attached: bool
) -> None:
    key = Path("id_ed25519") if is_attached else None
    code = {"a.py": b"a"}
    outputs = replace(OUTPUTS, attached_key=key)
    made = context.submitter(None, outputs, None, code, sync=sync)  # type: ignore[arg-type]
    assert made.code_hash == hash_files(code)
    assert made.sent_code == (code if sync or is_attached else None)
