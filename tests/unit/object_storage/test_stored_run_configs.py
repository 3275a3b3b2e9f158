"""What a run is configured by is stored under its hash before the job is queued."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cost.runs.forecast import recipe_of
from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs import recipes
from infra.jobs.ledger import open_ledger
from infra.jobs.recipes import RUN_CONFIG_VARIABLE, prepare
from infra.render.delivery import code_files, store
from stacks.load import STACKS_DIR, load_stack
from tests import SHIPPED
from tests.object_cloud import credentials
from tests.unit.cost.run_stacks import job_of, l40s
from tests.unit.jobs.raw import submitter
from tests.unit.jobs.test_submit import OUTPUTS, Recorded
from tests.unit.object_storage.conftest import Storage
from tests.unit.object_storage.test_uploads import stored
from workloads.recipes import config_text, read_recipe

CHECKOUT = STACKS_DIR.parent


def opened(storage: Storage, owner: str = "configs") -> dict[str, str]:
    key = credentials(owner)
    return store(
        "eu-north1",
        {"domain_name": f"127.0.0.1:{storage.port}"},
        {"name": "configs"},
        {"aws_access_key_id": key["access_key_id"], "secret": key["secret_access_key"]},
    )


def test_equal_settings_are_one_object_and_others_are_another(storage: Storage) -> None:
    one = recipes.config_text({"model": "m", "train": {"max_steps": 8}})
    two = recipes.config_text({"train": {"max_steps": 9}, "model": "m"})
    assert one == recipes.config_text({"train": {"max_steps": 8}, "model": "m"})
    first = recipes.keep(opened(storage), "lora", one)
    (path,) = (storage.folder / "storagebucket-configs").iterdir()
    before = path.stat().st_ino
    assert recipes.keep(opened(storage), "lora", one) == first
    assert path.stat().st_ino == before, "another write is another version of the bucket"
    assert recipes.keep(opened(storage), "lora", two) != first
    digest = hashlib.sha256(one).hexdigest()[:16]
    assert first == f"configs/runs/lora/{digest}.json"
    assert stored(storage)[f"runs/lora/{digest}.json"] == one
    assert len(stored(storage)) == 2


def test_a_key_without_rights_refuses_the_submission_with_what_to_do(storage: Storage) -> None:
    with pytest.raises(JobsError, match="nothing was submitted: run `pulumi up`"):
        recipes.keep(opened(storage, "copies"), "lora", b"{}")


def test_a_submission_names_the_object_to_its_job(
    storage: Storage, tmp_path: Path, public_key_file: Path
) -> None:
    class Login(Recorded):
        """Counts what is stored when sbatch comes."""

        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            said.append(f"{len(stored(storage))} stored before sbatch")
            return super().run(command, stdin=stdin)

    of, shell, said = open_ledger(l40s(), tmp_path, print), Login(), list[str]()
    files = code_files(CHECKOUT, of.spec)
    request = prepare(replace(of, log=said.append), job_of(of.spec), files, ["train.max_steps=8"])
    submitter(
        shell,
        OUTPUTS,
        state=tmp_path,
        books=lambda: of,
        log=said.append,
        store=lambda: opened(storage),
    ).submit(request)
    ((key, content),) = stored(storage).items()
    assert json.loads(content)["train"]["max_steps"] == 8
    assert f"{RUN_CONFIG_VARIABLE}=configs/{key}" in shell.submitted
    assert f"config: configs/{key}" in said
    assert "1 stored before sbatch" in said


def test_a_bucket_that_refuses_stops_the_submission_before_the_cluster_is_asked(
    storage: Storage, tmp_path: Path, public_key_file: Path
) -> None:
    of, shell = open_ledger(l40s(), tmp_path, print), Recorded()
    files = code_files(CHECKOUT, of.spec)
    own = submitter(
        shell,
        OUTPUTS,
        state=tmp_path,
        books=lambda: of,
        store=lambda: opened(storage, "copies"),
    )
    request = prepare(of, job_of(of.spec), files)
    with pytest.raises(JobsError, match="nothing was submitted: run `pulumi up`"):
        own.submit(request)
    assert (shell.asked, of.file.read().entries) == ([], ())


def test_the_job_makes_the_bytes_that_were_stored(public_key_file: Path) -> None:
    """Both sides read every shipped recipe alike, or no record could name its object."""
    for stack in SHIPPED:
        spec = load_stack(stack)
        files = code_files(CHECKOUT, spec)
        for job in spec.jobs:
            sets = ["description=2e-5", "train.learning_rate=2e-05", 'model="a b"']
            here = recipes.config_text(recipe_of(job, files, sets)).decode()
            assert here == config_text(read_recipe(job.recipe, sets)[1]), job.name
