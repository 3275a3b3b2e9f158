"""`soperator init` makes a project ready once, with least rights, and never twice."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cost.prices.book import PriceBook
from infra.cli.main import app
from infra.clients.passphrase import PUBLIC, make_salt, opens, public_problem
from infra.local import engine
from infra.providers.nebius import sdk
from infra.providers.nebius.api import Api, UnfinishedError
from infra.setup.project.project import Place
from infra.setup.project.stack_file import Answers, stack_text, worker_choices, write_stack
from stacks.check import check
from stacks.errors import UserError
from stacks.load import STACKS_DIR, load_stack
from tests.unit.init.conftest import PROJECT, environment_of

TENANT = "tenant-e00t"
GIVEN = ("--name", "prod", "--worker", "gpu-h100-sxm/8gpu-128vcpu-1600gb", "--nodes", "2")


def init(folder: Path, *arguments: str, key: Path | None = None) -> Result:
    keys = ("--ssh-key", str(key)) if key is not None else ()
    return CliRunner().invoke(app, ["init", *arguments, *keys, "--stacks-dir", str(folder)])


@pytest.fixture
def whole(tmp_path: Path, public_key_file: Path) -> tuple[Path, tuple[str, ...], Path]:
    """A folder for the stack, every option, and a public key."""
    folder = tmp_path / "stacks"
    folder.mkdir()
    return folder, ("--project", PROJECT, *GIVEN, "--fabric", "fabric-6"), public_key_file


def made(served: Any, kind: str) -> list[Any]:
    """Resources of a kind that the emulator holds, such as `ServiceAccount`."""
    return [
        resource
        for resource in served.emulator.store.resources.values()
        if resource.DESCRIPTOR.name == kind
    ]


@pytest.mark.feature("S000-66", "S003-16", "S003-57", "S003-58", "S003-59")
def test_a_project_gets_an_account_with_one_role_a_versioned_bucket_and_a_stack(
    served: Any, whole: Any, tmp_path: Path
):
    folder, options, key = whole
    result = init(folder, *options, key=key)
    assert result.exit_code == 0, result.output
    (account,) = made(served, "ServiceAccount")
    (permit,) = made(served, "AccessPermit")
    (member,) = made(served, "GroupMembership")
    # Not the tenant's own group of editors, as in the official recipe.
    assert (permit.spec.resource_id, permit.spec.role) == (PROJECT, "editor")
    assert permit.metadata.parent_id == member.metadata.parent_id
    assert member.spec.member_id == account.metadata.id
    (bucket,) = made(served, "Bucket")
    policy = bucket.spec.DESCRIPTOR.fields_by_name["versioning_policy"].enum_type
    assert policy.values_by_number[bucket.spec.versioning_policy].name == "ENABLED"
    for kind in ("AccessKey", "AuthPublicKey"):
        (found,) = made(served, kind)
        assert found.spec.expires_at.seconds > 0
    spec = load_stack("prod", folder)
    assert check(spec) == ()
    assert (spec.nebius.tenant_id, spec.nebius.region) == (TENANT, "eu-north1")
    variables = environment_of(tmp_path / "state" / "cloud" / PROJECT / "environment")
    assert variables["PULUMI_BACKEND_URL"].startswith(f"s3://{bucket.metadata.name}?endpoint=")
    # What lets plain pulumi work in a shell that sources it: the bucket, the states, the account.
    for name in ("PULUMI_CONFIG_PASSPHRASE_FILE", "SOPERATOR_NEBIUS_KEY_FILE"):
        assert Path(variables[name]).is_file(), name
    assert variables["AWS_ACCESS_KEY_ID"]
    assert "costs    $" in result.stdout


def test_a_second_run_changes_nothing(served: Any, whole: Any, tmp_path: Path):
    folder, options, key = whole
    assert init(folder, *options, key=key).exit_code == 0
    before = {
        path: path.read_bytes() for path in tmp_path.joinpath("state").rglob("*") if path.is_file()
    }
    stack = (folder / "Pulumi.prod.yaml").read_bytes()
    served.emulator.calls.clear()
    result = init(folder, *options, key=key)
    assert result.exit_code == 0, result.output
    assert "nothing to do" in result.stdout
    assert served.calls("/Create") == []
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "Pulumi.prod.yaml").read_bytes() == stack


def test_an_edited_environment_is_still_read(served: Any, whole: Any, tmp_path: Path):
    folder, options, key = whole
    assert init(folder, *options, key=key).exit_code == 0
    path = tmp_path / "state" / "cloud" / PROJECT / "environment"
    path.write_text(f"# of the team\nexport {path.read_text()}")
    result = init(folder, *options, key=key)
    assert result.exit_code == 0, result.output
    assert "nothing to do" in result.stdout


def test_what_was_lost_is_made_again_and_nothing_else(served: Any, whole: Any, tmp_path: Path):
    """The secret of an access key is shown once: without its file there must be a new key."""
    folder, options, key = whole
    assert init(folder, *options, key=key).exit_code == 0
    (tmp_path / "state" / "cloud" / PROJECT / "environment").unlink()
    served.emulator.calls.clear()
    result = init(folder, *options, key=key)
    assert result.exit_code == 0, result.output
    assert len(served.calls("/Create")) == 1
    assert len(made(served, "AccessKey")) == 2


def test_a_stack_file_that_says_something_else_is_never_overwritten(served: Any, whole: Any):
    folder, options, key = whole
    (folder / "Pulumi.prod.yaml").write_text("config: {}\n")
    result = init(folder, *options, key=key)
    assert result.exit_code == 1
    assert "never overwritten" in result.stderr
    assert (folder / "Pulumi.prod.yaml").read_text() == "config: {}\n"
    assert made(served, "ServiceAccount") == []


def test_an_edited_stack_file_stays_and_the_keys_of_its_project_are_renewed(
    served: Any, whole: Any, tmp_path: Path
):
    folder, options, key = whole
    assert init(folder, *options, key=key).exit_code == 0
    path = folder / "Pulumi.prod.yaml"
    path.write_text(edited := path.read_text() + "# ours\n")
    (tmp_path / "state" / "cloud" / PROJECT / "environment").unlink()
    result = init(folder, "--project", PROJECT, "--name", "prod")
    assert result.exit_code == 0, result.output
    assert path.read_text() == edited
    assert len(made(served, "AccessKey")) == 2
    again = init(folder, "--project", PROJECT, "--name", "prod")
    assert "nothing to do" in again.stdout
    path.write_text(edited.replace(PROJECT, "project-other"))
    other = init(folder, "--project", PROJECT, "--name", "prod")
    assert other.exit_code == 1
    assert "nebius.project_id 'project-other'" in other.stderr


def test_an_operation_that_outlasts_the_wait_is_told(
    served: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
):
    """It goes on in the cloud; the command ended with a traceback."""
    folder, options, key = whole

    def wait(*_arguments: Any) -> None:
        raise UnfinishedError("operation iamoperation-1 goes on; run the command again")

    monkeypatch.setattr(Api, "wait", wait)
    result = init(folder, *options, key=key)
    assert result.exit_code == 1
    told = "iam.v1.ServiceAccountService/Create: operation iamoperation-1 goes on; run the command"
    assert told in result.stderr


def test_a_stack_file_that_is_removed_meanwhile_is_told(tmp_path: Path):
    """What a project lacks may take a minute to make; it was a traceback then."""
    path = tmp_path / "Pulumi.prod.yaml"
    with pytest.raises(UserError, match=f"^{path}: was removed meanwhile; bring it back"):
        write_stack(path, None, "passphrase")


@pytest.mark.feature("S003-59")
def test_no_secret_is_printed_and_every_file_is_the_owner_s(
    served: Any, whole: Any, tmp_path: Path
):
    folder, options, key = whole
    result = init(folder, *options, key=key)
    cloud = tmp_path / "state" / "cloud" / PROJECT
    variables = environment_of(cloud / "environment")
    secrets = [
        variables["AWS_SECRET_ACCESS_KEY"],
        (cloud / "passphrase").read_text().strip(),
        json.loads((cloud / "deployer.json").read_text())["subject-credentials"]["private-key"],
    ]
    for secret in secrets:
        assert secret
        assert secret not in result.output
        assert secret not in (folder / "Pulumi.prod.yaml").read_text()
    for path in cloud.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.feature("S002-18", "S003-17", "S003-57")
def test_the_key_that_was_made_signs_in_as_the_deployer(
    served: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, options, key = whole
    assert init(folder, *options, key=key).exit_code == 0
    key_file = tmp_path / "state" / "cloud" / PROJECT / "deployer.json"
    sdk.shared_sdk.cache_clear()
    result = init(folder, *options, "--key-file", str(key_file), key=key)
    monkeypatch.delenv("SOPERATOR_NEBIUS_KEY_FILE", raising=False)
    assert result.exit_code == 0, result.output
    assert "nothing to do" in result.stdout


@pytest.mark.feature("S003-16", "S003-54", "S003-55")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("--project", "p-1"), "starts with 'project-'"),
        (
            ("--project", "project-e00gone"),
            "'project-e00gone' is no project that this credential can see; copy the id",
        ),
        (("--project", PROJECT, "--tenant", "tenant-e00x"), "is in 'tenant-e00t', not in"),
        (("--project", PROJECT, "--region", "eu-west1"), "REGION: project-e00p is in 'eu-n"),
    ],
)
def test_a_place_that_is_not_there_is_refused_before_anything_is_made(
    served: Any, whole: Any, changes: tuple[str, ...], said: str
):
    folder, _, key = whole
    result = init(folder, *changes, *GIVEN, "--fabric", "fabric-6", key=key)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "pulumi refresh" not in result.stderr, "no state has it yet"
    assert made(served, "ServiceAccount") == []
    assert list(folder.iterdir()) == []


@pytest.mark.feature("S003-54")
def test_without_a_terminal_all_missing_options_are_named_with_the_choices(served: Any, whole: Any):
    folder, _, _ = whole
    result = init(folder, "--project", PROJECT)
    assert result.exit_code == 1
    assert "--name, --worker, --nodes, --ssh-key: not given" in result.stderr
    assert "gpu-h100-sxm/8gpu-128vcpu-1600gb" in result.stderr
    assert "a month" in result.stderr
    assert "--project: not given" in init(folder).stderr


@pytest.mark.feature("S003-54")
def test_the_environment_names_project_tenant_and_region_and_an_option_wins(
    served: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
):
    folder, _, key = whole
    wrong = {"PROJECT_ID": "project-e00gone", "TENANT_ID": "tenant-e00x", "REGION": "eu-west1"}
    for name, value in wrong.items():
        monkeypatch.setenv(f"NEBIUS_{name}", value)
    options = (*GIVEN, "--fabric", "fabric-6")
    said = init(folder, *options, key=key).stderr
    assert "--project or NEBIUS_PROJECT_ID: 'project-e00gone' is no project" in said
    monkeypatch.setenv("NEBIUS_PROJECT_ID", PROJECT)
    said = init(folder, *options, key=key).stderr
    assert "--tenant or NEBIUS_TENANT_ID: project-e00p is in 'tenant-e00t', not in" in said
    own_region = ("--tenant", TENANT)
    said = init(folder, *options, *own_region, key=key).stderr
    assert "--region or NEBIUS_REGION: project-e00p is in 'eu-north1', not in" in said
    monkeypatch.setenv("NEBIUS_REGION", "eu-north1")
    assert init(folder, *options, *own_region, key=key).exit_code == 0


def test_answers_that_break_a_rule_are_refused_by_that_rule(served: Any, whole: Any):
    folder, _, key = whole
    result = init(folder, "--project", PROJECT, *GIVEN, "--fabric", "fabric-7", key=key)
    assert result.exit_code == 1
    assert "prod.nodes.workers[0].infiniband_fabric: 'fabric-7' is a fabric of gpu-h200-sxm" in (
        result.stderr
    )
    assert made(served, "Bucket") == []


@pytest.mark.parametrize("preset", ["8vcpu-32gb", "16vcpu-64gb"])
def test_workers_without_gpus_make_a_valid_stack(
    preset: str, tmp_path: Path, public_key_file: Path
):
    choices = worker_choices("eu-north1", PriceBook.load("nebius"))
    (chosen,) = [each for each in choices if each.name == f"cpu-d3/{preset}"]
    answers = Answers(
        name="cpu", place=Place(tenant_id=TENANT, project_id=PROJECT, region="eu-north1"),
        choice=chosen, nodes=2, fabric=None,
        ssh_public_keys=(f"file:{public_key_file}",),
    )  # fmt: skip
    (tmp_path / "Pulumi.cpu.yaml").write_text(stack_text(answers, "v1:x"))
    assert [
        problem for problem in check(load_stack("cpu", tmp_path)) if problem.level == "error"
    ] == []


def test_a_full_disk_leaves_no_half_of_a_stack_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run took the half for another file, which it never overwrites."""

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    answers = Answers(
        name="cpu", place=Place(tenant_id=TENANT, project_id=PROJECT, region="eu-north1"),
        choice=worker_choices("eu-north1", PriceBook.load("nebius"))[0], nodes=2, fabric=None,
        ssh_public_keys=("file:key",),
    )  # fmt: skip
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_stack(tmp_path / "Pulumi.cpu.yaml", answers, "passphrase")
    assert list(tmp_path.iterdir()) == []


def test_a_stack_with_a_passphrase_of_its_own_is_left_out_of_the_local_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The engine would refuse it for its passphrase, and `soperator env` with it."""
    stacks = tmp_path / "checkout" / "stacks"
    stacks.mkdir(parents=True)
    for name, passphrase in (("ours", PUBLIC), ("own", "another")):
        salt = make_salt(passphrase)
        (stacks / f"Pulumi.{name}.yaml").write_text(f"config: {{}}\nencryptionsalt: {salt}\n")
    asked: list[str] = []
    monkeypatch.setattr(engine, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setattr(engine, "_init", lambda stack, environ: asked.append(stack) or "")
    engine.init_stacks(tmp_path / "backend", {})
    assert asked == ["ours"]


def test_a_salt_is_what_the_engine_makes_of_its_passphrase():
    """The shipped files carry salts that the engine itself wrote."""
    text = (STACKS_DIR / "Pulumi.local.yaml").read_text(encoding="utf-8")
    written = text.split("encryptionsalt: ")[1].split()[0]
    assert opens(PUBLIC, written)
    assert not opens("another", written)
    assert opens("another", make_salt("another"))


def test_a_folder_that_is_not_there_is_told_before_anything_is_made(served: Any, whole: Any):
    folder, options, key = whole
    result = init(folder / "none", *options, key=key)
    assert result.exit_code == 1
    assert f"--stacks-dir: '{folder / 'none'}' is no folder that can be written to" in result.output
    assert made(served, "ServiceAccount") == []


def test_a_stack_under_the_passphrase_that_everybody_knows_is_no_stack_of_a_real_cluster(
    tmp_path: Path,
):
    file = tmp_path / "Pulumi.own.yaml"
    assert public_problem(file) is None
    file.write_text("config: {}\nsecretsprovider: awskms://key\n")
    assert public_problem(file) is None
    file.write_text(f"config: {{}}\nencryptionsalt: {make_salt('another')}\n")
    assert public_problem(file) is None
    file.write_text(f"config: {{}}\nencryptionsalt: {make_salt(PUBLIC)}\n")
    said = str(public_problem(file))
    assert said.startswith("Pulumi.own.yaml.encryptionsalt: is of the passphrase of the shipped")
    assert "pulumi stack change-secrets-provider passphrase --stack own" in said
