"""A run is repeated with its own settings, code and data, or refused with what to do."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.runs.forecast import recipe_of, with_settings
from infra.cli.main import app
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Result
from infra.render.delivery import code_files, hash_files
from infra.render.sbatch import RELEASE_VARIABLE
from infra.reports.runs import run as again
from infra.reports.runs.run import Run
from stacks.load import STACKS_DIR, load_stack
from stacks.spec.slurm import SearchSpec
from tests.unit.cost.run_stacks import job_of
from tests.unit.jobs.login_node import LoginNode
from tests.unit.jobs.test_submit import OUTPUTS, Recorded
from tests.unit.runs.folders import COMMIT, DATA_HASH, runs, write_run

CHECKOUT = STACKS_DIR.parent
RUNNER = CliRunner()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture
def files(public_key_file: Path) -> Mapping[str, bytes]:
    return code_files(CHECKOUT, load_stack("local"))


def ran(state: Path, files: Mapping[str, bytes], *sets: str) -> Run:
    """The run 2, of the job finetune with these settings."""
    job = job_of(load_stack("local"))
    recipe = with_settings(recipe_of(job, files), sets)
    write_run(state, "2", recipe=recipe, code_hash=hash_files(files))
    return runs(state)[0]


@pytest.mark.feature("S002-66")
def test_the_settings_are_what_the_run_had_otherwise(
    state: Path, files: Mapping[str, bytes]
) -> None:
    run = ran(state, files, "train.seed=11", "train.max_steps=6", "train.resume=auto")
    job = job_of(load_stack("local"))
    sets = again.settings_of(run, job, files)
    assert "train.seed=11" in sets
    assert "train.max_steps=6" in sets
    assert "train.resume=never" in sets, "its own checkpoint would end it at once"
    made = with_settings(recipe_of(job, files), sets)
    assert run.recipe is not None
    assert made == {**run.recipe, "train": {**run.recipe["train"], "resume": "never"}}


def test_a_trial_of_a_search_is_run_again_as_the_searchs_job(
    state: Path, files: Mapping[str, bytes]
) -> None:
    run = ran(state, files)
    trial = replace(run, record=replace(run.record, job="lr"))
    search = SearchSpec(name="lr", job="finetune", metric="last_loss")
    spec = replace(load_stack("local"), searches=(search,))
    assert again.job_of(trial, spec).name == "finetune"
    with pytest.raises(JobsError, match="declares no job 'lr' any more"):
        again.job_of(trial, load_stack("local"))


def test_a_text_that_looks_like_json_stays_text(state: Path, files: Mapping[str, bytes]) -> None:
    run = ran(state, files, 'description="12"')
    assert 'description="12"' in again.settings_of(run, job_of(load_stack("local")), files)


def test_a_key_that_the_run_had_not_is_refused(state: Path, files: Mapping[str, bytes]) -> None:
    run = ran(state, files)
    assert run.recipe is not None
    fewer = {key: value for key, value in run.recipe.items() if key != "description"}
    with pytest.raises(JobsError, match="has keys that the run's had not"):
        again.settings_of(replace(run, recipe=fewer), job_of(load_stack("local")), files)


def test_a_run_without_its_recipe_is_refused(state: Path, files: Mapping[str, bytes]) -> None:
    run = replace(ran(state, files), recipe=None)
    with pytest.raises(JobsError, match=r"no recipe\.json lies beside its record"):
        again.settings_of(run, job_of(load_stack("local")), files)


def repository(folder: Path) -> str:
    """A git repository with one commit, whose name is returned."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_other_code_is_refused_with_the_way_to_the_runs_own(state: Path, tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    commit = repository(root)
    write_run(state, "2", git_revision=commit)
    (run,) = runs(state)
    again.check_code(run, "0123456789abcdef", root, state)
    with pytest.raises(JobsError, match="at the same commit"):
        again.check_code(run, "f" * 16, root, state)
    with pytest.raises(JobsError, match=f"commit {COMMIT} is not in this repository: git fetch"):
        again.check_code(
            replace(run, record=replace(run.record, git_revision=COMMIT)), "f" * 16, root, state
        )
    subprocess.run(
        [*("git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"),
         *("commit", "-q", "--allow-empty", "-m", "two")],
        check=True,
    )  # fmt: skip
    with pytest.raises(JobsError, match=rf"git worktree add \.\./run-2 {commit}") as refused:
        again.check_code(run, "f" * 16, root, state)
    assert f"SOPERATOR_STATE={state}" in str(refused.value)
    odd = replace(run, record=replace(run.record, job_id="2; touch owned"))
    with pytest.raises(JobsError, match=rf"git worktree add '\.\./run-2; touch owned' {commit};"):
        again.check_code(odd, "f" * 16, root, state)


def test_a_job_that_is_declared_no_more_is_refused(state: Path, public_key_file: Path) -> None:
    write_run(state, "2", job="finetune-old")
    with pytest.raises(JobsError, match="declares no job 'finetune-old' any more"):
        again.job_of(runs(state)[0], load_stack("local"))


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (66, "", "is not on the cluster any more: bring it with soperator data push"),
        (0, f"{'e' * 64}  /mnt/data\n", "is other data now: SHA-256 eeeeeeeeeeeeeeee"),
        (1, "", "sha256sum"),
    ],
)
def test_data_that_is_gone_or_other_is_refused(
    state: Path, code: int, said: str, words: str
) -> None:
    write_run(state, "2")
    with pytest.raises(JobsError, match=words):
        again.check_data(runs(state)[0], Recorded(stdout=said, exit_code=code))


def test_the_same_data_passes_and_a_run_without_a_hash_says_so(state: Path) -> None:
    write_run(state, "2")
    (run,) = runs(state)
    same = Recorded(stdout=f"{DATA_HASH}  /mnt/data\n")
    assert again.check_data(run, same) is None
    told = again.check_data(replace(run, record=replace(run.record, data_hash=None)), Recorded())
    assert told is not None
    assert "its data is not checked" in told


HELD = "12|12|ann|red|main|PENDING|N/A|N/A|1|N/A||1|1:00|JobHeldUser|job\n"
"""What the queue has of job 12 until the budget lets it go."""


class Cluster:
    """A login node with the run's data, that submits as job 12."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.asked.append(command)
        said = "12\n"
        if "sha256sum" in command:
            said = f"{DATA_HASH}  /mnt/data\n"
        elif "squeue" in command and "submit_once sbatch" not in command:
            said = HELD if "%r" in command else "--\n"
        elif "--test-only" in command:
            said = "#!/bin/bash\n"
        return Result(command=command, exit_code=0, stdout=said, stderr="")

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        result = self.run(command, stdin=stdin)
        return result, result.stdout.encode()


def test_the_verb_shows_first_and_submits_when_told(
    state: Path, files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(state, files, "train.seed=11")
    cluster = Cluster()

    def read(stack: str, *_: object) -> StackOutputs:
        return replace(OUTPUTS, code_hash=hash_files(files))

    monkeypatch.setattr("infra.cli.context.caller", read)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: cluster)
    shown = RUNNER.invoke(app, ["runs", "reproduce", "2"])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(f"# sbatch --parsable --export=ALL,{RELEASE_VARIABLE}=")
    assert " jobs/finetune --set" in shown.stdout
    assert "--set train.seed=11" in shown.stdout
    assert "nothing was submitted" in shown.stderr
    assert not [each for each in cluster.asked if "submit_once sbatch" in each]
    done = RUNNER.invoke(app, ["runs", "reproduce", "2", "--submit"])
    assert done.exit_code == 0, done.output
    assert done.stdout == "12\n"
    assert "soperator runs diff 2 12" in done.stderr
    (sent,) = [each for each in cluster.asked if "submit_once sbatch" in each]
    assert "--set train.seed=11" in sent
    kept = json.loads((state / "runs" / "local" / "12" / "submission.json").read_text())
    assert kept["reproduces"] == "2"


def test_a_run_is_reproduced_once_until_asked_for_again(
    state: Path, files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(state, files, "train.seed=11")
    node = LoginNode(state / "node")
    outputs = node.outputs(hash_files(files))
    monkeypatch.setattr("infra.reports.runs.run.check_data", lambda *_: None)
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: outputs)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: node)
    words = ["runs", "reproduce", "2", "--submit"]
    first, second = RUNNER.invoke(app, words), RUNNER.invoke(app, words)
    assert (first.stdout, second.stdout) == ("12\n", "12\n"), second.output
    assert "nothing was submitted; --again submits it once more" in second.stderr
    assert RUNNER.invoke(app, [*words, "--again"]).stdout == "13\n"
    kept = json.loads((state / "runs" / "local" / "13" / "submission.json").read_text())
    assert kept["reproduces"] == "2"


def test_a_run_of_the_same_settings_is_no_repetition_of_another(
    state: Path, files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job 12 was submitted for its own sake with what run 2 had: 2 is still to be repeated."""
    ran(state, files, "train.seed=11")
    node = LoginNode(state / "node")
    outputs = node.outputs(hash_files(files))
    monkeypatch.setattr("infra.reports.runs.run.check_data", lambda *_: None)
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: outputs)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: node)
    sets = ["--set", "train.seed=11", "--set", "train.resume=never"]
    assert RUNNER.invoke(app, ["submit", "finetune", *sets]).stdout == "12\n"
    assert RUNNER.invoke(app, ["runs", "reproduce", "2", "--submit"]).stdout == "13\n"


def test_ctrl_c_while_it_is_submitted_loses_neither_its_id_nor_what_it_repeats(
    state: Path, files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(state, files, "train.seed=11")
    cluster = Cluster()
    answer = cluster.run

    def interrupted(command: str, *, stdin: bytes = b"") -> Result:
        if "submit_once sbatch" in command:
            signal.raise_signal(signal.SIGINT)
        return answer(command, stdin=stdin)

    monkeypatch.setattr(cluster, "run", interrupted)
    read = replace(OUTPUTS, code_hash=hash_files(files))
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: read)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: cluster)
    done = RUNNER.invoke(app, ["runs", "reproduce", "2", "--submit"])
    assert (done.exit_code, done.stdout) == (130, "12\n"), done.output
    kept = json.loads((state / "runs" / "local" / "12" / "submission.json").read_text())
    assert kept["reproduces"] == "2"
