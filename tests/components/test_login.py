"""The door: which keys open it, which key proves it, and what is carried through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.delivery import code_files, hash_files
from infra.render.login import teams_script
from infra.state import CHECKOUT
from stacks.spec import StackSpec
from stacks.spec.slurm import AccountSpec
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder, Registered, plain
from tests.conftest import PUBLIC_KEY

pytestmark = pytest.mark.parametrize("stack", SHIPPED)
COMMAND = "command:remote:Command"
COPY = "command:remote:CopyToRemote"


def connections(recorder: Recorder) -> list[Registered]:
    return [each for each in recorder.registered if each.type.startswith("command:remote:")]


def release(recorder: Recorder, name: str) -> Registered:
    return recorder.one("kubernetes:helm.sh/v3:Release", name)


@pytest.mark.feature("S002-24", "S003-65")
def test_the_users_keys_and_the_deploy_key_open_the_door(
    deployed: Deploy, load: Callable[[str], StackSpec], stack: str
) -> None:
    """Without the deploy key the program could not deliver; it must not ask for the user's."""
    spec = load(stack)
    keys = (PUBLIC_KEY, PUBLIC_KEY.replace("tests", "a colleague's"))
    made = deployed(replace(spec, login=replace(spec.login, ssh_public_keys=keys)))
    login = release(made, "slurm-cluster").inputs["values"]["slurmNodes"]["login"]
    deploy = f"ssh-ed25519 PUBLIC {stack}-deploy-key"
    assert login["sshRootPublicKeys"] == [*keys, deploy]


def test_every_connection_uses_the_deploy_key_and_pins_the_host_key(
    deployed: Deploy, stack: str
) -> None:
    """Without a pin the first connection would trust whoever answers."""
    made = connections(deployed(stack))
    assert len(made) == 7
    for each in made:
        connection = each.inputs["connection"]
        assert connection["privateKey"] == f"PRIVATE {stack}-deploy-key"
        assert connection["hostKey"] == f"ssh-ed25519 PUBLIC {stack}-host-key"
        assert connection["host"] == "203.0.113.7"
        assert connection["port"] == (30022 if stack == "local" else 22)


def test_the_pinned_key_is_the_one_that_the_login_node_gets(deployed: Deploy, stack: str) -> None:
    """Under all six names that Soperator's pods mount: a pod that misses one never starts."""
    recorder = deployed(stack)
    secret = recorder.one("kubernetes:core/v1:Secret", f"{stack}-login-host-keys")
    values = release(recorder, "slurm-cluster").inputs["values"]
    assert secret.inputs["metadata"]["name"] == values["secrets"]["sshdKeysName"]
    assert secret.inputs["stringData"] == {
        f"ssh_host_{name}_key{ending}": text
        for name in ("rsa", "ecdsa", "ed25519")
        for ending, text in (
            ("", f"PRIVATE {stack}-host-key"),
            (".pub", f"ssh-ed25519 PUBLIC {stack}-host-key"),
        )
    }
    assert secret.urn in release(recorder, "slurm-cluster").depends_on


def test_the_code_goes_to_a_folder_named_by_its_hash(
    deployed: Deploy, load: Callable[[str], StackSpec], stack: str
) -> None:
    spec = load(stack)
    name = hash_files(code_files(CHECKOUT, spec))
    recorder = deployed(stack)
    copy = recorder.one(COPY)
    assert copy.inputs["remotePath"] == f"{spec.code_path}/releases/{name}"
    assert plain(recorder.outputs)["code_hash"] == name


@pytest.mark.feature("S002-30", "S003-74", "S003-79")
def test_what_is_sent_is_what_the_hash_names(
    deployed: Deploy, load: Callable[[str], StackSpec], stack: str
) -> None:
    copy = deployed(stack).one(COPY)
    source = copy.inputs["source"]["path"]
    assert source.endswith(f"/{stack}/")
    folder = Path(CHECKOUT, source)
    assert (folder / "workloads" / "train" / "__main__.py").is_file()
    assert (folder / "jobs" / "finetune").is_file()
    sent = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert copy.inputs["remotePath"].endswith(f"/releases/{hash_files(sent)}")
    # With what Python reads beside its modules: recipes, limits, templates, scripts.
    own = {
        path.relative_to(CHECKOUT).as_posix()
        for path in Path(CHECKOUT, "workloads").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {path for path in sent if path.startswith("workloads/")} == own
    spec = load(stack)
    jobs = {f"jobs/{each.name}" for each in (*spec.jobs, *spec.searches)}
    assert {path for path in sent if path.startswith("jobs/")} == jobs


@pytest.mark.feature("S000-59", "S002-30")
def test_the_release_becomes_current_only_after_it_arrived_in_its_place(
    deployed: Deploy, stack: str
) -> None:
    recorder = deployed(stack)
    copy, places = recorder.one(COPY), recorder.one(COMMAND, f"{stack}-places")
    current = recorder.one(COMMAND, f"{stack}-current")
    assert places.urn in copy.depends_on
    assert copy.urn in current.depends_on
    assert plain(recorder.outputs)["code_hash"] in current.inputs["create"]


@pytest.mark.feature("S004-29")
def test_declared_teams_are_set_once_their_users_are_there_and_before_what_they_submit(
    deployed: Deploy, load: Callable[[str], StackSpec], stack: str
) -> None:
    spec = load(stack)
    team = AccountSpec(name="red", users=tuple(each.name for each in spec.soperator.users))
    declared = replace(spec, slurm=replace(spec.slurm, accounts=(team,)))
    recorder = deployed(declared)
    users, teams, current = (
        recorder.one(COMMAND, f"{stack}-{name}") for name in ("users", "teams", "current")
    )
    assert teams.inputs["create"] == teams_script(declared)
    assert users.urn in teams.depends_on
    assert teams.urn in current.depends_on


@pytest.mark.feature("S002-27")
def test_nothing_is_carried_before_slurm_is_released_and_its_nodes_are_ready(
    deployed: Deploy, stack: str
) -> None:
    recorder = deployed(stack)
    ready, users, places = (
        recorder.one(COMMAND, f"{stack}-{name}") for name in ("ready", "users", "places")
    )
    assert ready.urn in users.depends_on
    assert users.urn in places.depends_on
    login = recorder.one("soperator:infra:Login")
    assert release(recorder, "nodesets").urn in login.depends_on


@pytest.mark.feature("S002-28")
def test_the_stack_is_ready_when_sinfo_says_so(deployed: Deploy, stack: str) -> None:
    recorder = deployed(stack)
    waits = recorder.one(COMMAND, f"{stack}-ready").inputs["create"]
    assert "states=$(sinfo " in waits
    assert "not idle after" in waits, "it fails where a node never is"
    assert plain(recorder.outputs)["ready"] == f"output of {stack}-ready"


def test_no_command_sends_its_previous_output(deployed: Deploy, stack: str) -> None:
    """sshd of Soperator takes LANG and LC_* only: each update would warn of the variables."""
    made = [each for each in connections(deployed(stack)) if each.type == COMMAND]
    assert made
    assert {each.inputs["addPreviousOutputInEnv"] for each in made} == {False}
