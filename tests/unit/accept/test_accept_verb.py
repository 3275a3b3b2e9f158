"""`cluster accept`: results of any launcher become a certificate; an edited one is refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.runs.forecast import UnknownRun
from infra.cli import context
from infra.cli.cluster import accept as module
from infra.cli.main import app
from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.jobs.ledger import open_ledger
from infra.jobs.recipes import Request
from infra.jobs.submit import Submitter
from infra.reports.acceptance import certificate, run
from infra.reports.acceptance.run import STAGES, AcceptError, Profile, given, merge, parse
from stacks.load import load_stack
from tests.damage import damaged
from tests.unit.accept import acceptance
from tests.unit.jobs.raw import request
from tests.unit.jobs.test_submit import OUTPUTS


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen (`make setup`)")
    path = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    monkeypatch.setenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", f"{path}.pub")
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    return path


def test_results_become_a_certificate_with_the_stacks_prices(key: Path, tmp_path: Path) -> None:
    points = (acceptance.point(8, 41467.8), acceptance.point(16, 8572.6, 2))
    made = acceptance.report(points=points, extra=[acceptance.dead_gpu()])
    path = acceptance.write(tmp_path, made)
    words = [
        "cluster",
        "accept",
        "--stack",
        "h100-prod",
        "--result",
        str(path),
        "-o",
        str(tmp_path / "c"),
    ]
    done = CliRunner().invoke(app, [*words, "--format", "json"])
    assert done.exit_code == 1, done.output
    values = json.loads(done.stdout)
    costs = {check["id"]: check["usd_per_month"] for check in values["checks"]}
    whole = values["prices"]["node_usd_per_month"]["worker-0"]
    assert costs["readiness.gpus"] == whole, "a node that lacks a GPU is paid for whole"
    assert 20000 < float(whole) < 40000  # eight H100 for 730 hours
    assert float(costs["training.scaling_efficiency"]) > float(whole)
    page = tmp_path / "c" / "certificate.html"
    done = CliRunner().invoke(app, ["cluster", "accept", "--verify", str(page)])
    assert done.exit_code == 1
    assert "FAIL: " in done.stdout
    words = ["ssh-keygen", "-lf", f"{key}.pub"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    proof = f"given as a file, which proves no job of a cluster: {sha256}"
    assert f": signed by {printed} (your own key); {proof}; made 20" in " ".join(
        done.stderr.split()
    )
    assert proof in page.read_text()
    page.write_text(page.read_text().replace("20.67", "98.37"))
    done = CliRunner().invoke(app, ["cluster", "accept", "--verify", str(page)])
    assert done.exit_code == 1
    assert "not what was signed, or not by this key" in done.stderr
    assert done.stdout == ""


def test_a_result_that_others_damaged_is_refused_by_its_name(key: Path, tmp_path: Path) -> None:
    """Of 729 damaged results 83 were a traceback."""
    points = (acceptance.point(8, 41467.8), acceptance.point(16, 8572.6, 2))
    whole = json.loads(json.dumps(acceptance.values(acceptance.report(points=points))))
    path = tmp_path / "result.json"
    said: list[str] = []
    for values in itertools.islice(damaged(whole), 0, None, 11):
        try:
            with given([path]):
                made = certificate.content(
                    merge([parse(values, str(path))], {}), stack="s", prices={}, price_note="none."
                )
                certificate.render(made)
        except AcceptError as error:
            said.append(str(error))
    assert len(said) > 60
    assert all(each.startswith(f"{path}: ") for each in said), said
    whole["measurements"]["collectives"] = [3]
    path.write_text(json.dumps(whole))
    words = ["cluster", "accept", "-s", "h100-prod", "--result", str(path)]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 1
    assert f"{path}: not in the form of workloads/accept/acceptance.schema.json" in refused.stderr


def test_a_result_of_others_names_no_folder_of_its_certificate(key: Path, tmp_path: Path) -> None:
    """`../..` in the id of its job led out of the state folder."""
    values = acceptance.values(acceptance.report())
    values["run"]["job_id"] = "../../../../out"
    path = tmp_path / "result.json"
    path.write_text(json.dumps(values, default=str))
    words = ["cluster", "accept", "-s", "h100-prod", "--result", str(path)]
    done = CliRunner().invoke(app, words)
    made = list(tmp_path.rglob("certificate.html"))
    assert [each.parent.parent for each in made] == [tmp_path / "state/accept/h100-prod"], done


def test_a_passed_certificate_ends_with_0_and_a_gap_with_69(key: Path, tmp_path: Path) -> None:
    for stages, code in ((STAGES, 0), (("training",), 0), ((), 69)):
        made = acceptance.report(stages=stages or STAGES)
        if not stages:
            made.checks = [each for each in made.checks if not each.id.startswith("soak")]
        path = acceptance.write(tmp_path, made)
        words = ["cluster", "accept", "--stack", "h100-prod", "--result", str(path)]
        done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / f"c{len(stages)}")])
        assert done.exit_code == code, done.output
        public = f"{key}.pub"
        where = tmp_path / f"c{len(stages)}" / "certificate.json"
        words = ["cluster", "accept", "--verify", str(where), "--signer", public]
        assert CliRunner().invoke(app, words).exit_code == code


def test_a_certificate_of_some_stages_says_so_wherever_it_says_pass(
    key: Path, tmp_path: Path
) -> None:
    path = acceptance.write(tmp_path, acceptance.report(stages=("readiness", "soak")))
    words = [
        "cluster",
        "accept",
        "--stack",
        "h100-prod",
        "--result",
        str(path),
        "-o",
        str(tmp_path / "c"),
    ]
    done = CliRunner().invoke(app, words)
    assert "\nPASS of readiness, soak only: " in done.stdout
    assert "\ncertifies only readiness, soak, and no cluster: connectivity, " in done.stdout
    page = (tmp_path / "c" / "certificate.html").read_text()
    assert "<title>Acceptance of h100-prod: PASS of readiness, soak only</title>" in page


def test_what_could_not_be_certified_is_refused_before_a_job(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_words: object, **_options: object) -> None:
        raise AssertionError("nodes were asked for")

    monkeypatch.setattr(module, "_run", never)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "certificate.json").write_text("{}")
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)
    for words, said in (
        (["-o", str(tmp_path / "c"), "--identity", str(key)], "holds a certificate"),
        (["--identity", str(locked)], "not signed with"),
    ):
        done = CliRunner().invoke(app, ["cluster", "accept", "--stack", "h100-prod", *words])
        assert isinstance(done.exception, AcceptError | SystemExit), done.exception
        assert said in done.output + str(done.exception)


def test_its_recipe_is_kept_like_that_of_every_job(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def refuse(self: Submitter, request: Request, **_options: object) -> None:
        asked.append({"nodes": request.nodes, "store": self.store()})
        raise JobsError("enough was seen")

    outputs = replace(OUTPUTS, jobs={"accept": ""})
    for name, value in {
        "caller": lambda _stack, _identity: outputs,
        "local_code": lambda _stack: {},
        "connect": lambda _outputs, _key: nullcontext(),
        "run_config_store": lambda _outputs: {"bucket": "kept"},
    }.items():
        monkeypatch.setattr(context, name, value)
    monkeypatch.setattr(module, "prepare", lambda *_words, **_options: request("accept"))
    monkeypatch.setattr(Submitter, "submit", refuse)
    done = CliRunner().invoke(
        app, ["cluster", "accept", "--stack", "h100-prod", "--identity", str(key)]
    )
    assert "enough was seen" in done.output + str(done.exception)
    (options,) = asked
    assert options["store"] == {"bucket": "kept"}
    assert options["nodes"] == (), "the first job finds the nodes"


def test_quick_is_one_job_and_full_one_for_each_stage() -> None:
    (quick,) = run.batches(Profile.QUICK, ("readiness", "soak"), ["accept.soak_s=5"]).values()
    assert quick == (
        "accept.profile=quick",
        'accept.stages=["readiness", "soak"]',
        "accept.soak_s=5",
    )
    mounts = ("/home", "/mnt/data")
    full = run.batches(Profile.FULL, run.chosen_stages(None), [], mounts)
    told = [stages for stages, sets in full.items() if len(sets) == 3]
    assert told == [("storage",)], "the other stages have no setting of that name"
    assert full["storage",][-1] == 'accept.storage.mounts=["/home", "/mnt/data"]'
    assert list(full) == [(stage,) for stage in STAGES]
    assert run.chosen_stages("soak, readiness") == ("readiness", "soak")
    with pytest.raises(AcceptError, match="stages speed: speed is no stage"):
        run.chosen_stages("speed")


def test_a_stage_that_its_job_never_reached_says_so() -> None:
    ended = Job(id="7", name="accept", state="TIMEOUT", exit_code=76)
    assert run.gaps(("soak",), None, ended, "l40s-dev") == {
        "soak": "job 7 left no result: TIMEOUT, exit 76; see `soperator logs 7 -s l40s-dev`"
    }


def test_its_forecast_says_what_its_time_limit_allows_and_asks_for_no_tokens(
    key: Path, tmp_path: Path
) -> None:
    environ = {"SOPERATOR_SSH_PUBLIC_KEY_FILE": f"{key}.pub"}
    spec = load_stack("h100-prod", environ=environ)
    accept = run.accept_job(spec)
    run_of = open_ledger(spec, tmp_path, lambda line: None).forecast(accept)
    assert str(run_of) == (
        f"NOT KNOWN: accept trains on no tokens; its limit is {accept.time_limit}"
    )
    serving = load_stack("l40s-dev", environ=environ)
    serve = next(job for job in serving.jobs if job.is_server)
    assert str(open_ledger(serving, tmp_path, lambda line: None).forecast(serve)) == (
        f"NOT KNOWN: {serve.name} answers until somebody ends it; its limit is {serve.time_limit}"
    )
    assert isinstance(run_of, UnknownRun)
    # Two nodes for two hours at 8 x $4.50.
    assert run_of.at_most_usd == 144


@pytest.mark.feature("S001-01")
def test_every_shipped_stack_declares_its_acceptance(key: Path) -> None:
    environ = {"SOPERATOR_SSH_PUBLIC_KEY_FILE": f"{key}.pub"}
    for name in ("local", "l40s-dev", "h100-prod", "h200-elastic"):
        job = run.accept_job(load_stack(name, environ=environ))
        assert (job.name, job.restarts) == ("accept", 0)
