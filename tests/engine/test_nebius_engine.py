"""The real engine drives the native provider against the emulator's own process."""

import json
import os
import signal
import sqlite3
import time

import pytest

from tests.engine.nebius_project import (
    FILESYSTEM,
    PROJECT,
    Project,
    filesystem,
    pulumi_binary,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("forks"),
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]


@pytest.fixture
def project(tmp_path, emulator):
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, emulator.port)


def test_a_second_up_changes_nothing(project):
    project.declare(jail=filesystem("jail"))
    assert "+ 2 created" in project.up()
    output = project.up("--expect-no-changes")
    assert "2 unchanged" in output


def test_an_update_in_place_keeps_the_id_known_to_dependents(project):
    subnet = ("nebius:vpc/v1:Subnet", {"parent_id": PROJECT, "name": "sub"}, {})
    network = ("nebius:vpc/v1:Network", {"parent_id": PROJECT, "name": "net"}, {})
    subnet[2]["network_id"] = "id of net"
    project.declare(net=network, sub=subnet)
    project.up()
    before = project.outputs()
    network[1]["labels"] = {"team": "ml"}
    project.declare(net=network, sub=subnet)
    preview = json.loads(project.run("preview", "--json"))
    assert preview["changeSummary"] == {"same": 2, "update": 1}
    project.up()
    assert project.outputs() == before


def test_an_immutable_change_replaces_and_the_diff_says_which_field(project):
    project.declare(jail=filesystem("jail"))
    project.up()
    before = project.outputs()["jail"]
    project.declare(jail=filesystem("jail", type="network-hdd"))
    preview = json.loads(project.run("preview", "--json"))
    (step,) = [step for step in preview["steps"] if step["op"] == "replace"]
    assert step["detailedDiff"] == {"spec.type": {"kind": "update-replace", "inputDiff": True}}
    project.up()
    assert project.outputs()["jail"] != before


def test_a_forced_replace_makes_a_new_resource_and_keeps_it(project, emulator):
    project.declare(jail=filesystem("jail"))
    project.up()
    before = project.outputs()["jail"]
    project.up("--replace", f"urn:pulumi:test::tiny::{FILESYSTEM}::jail")
    assert filesystems(emulator) == [project.outputs()["jail"]] != [before]


def test_refresh_sees_a_deletion_behind_its_back(project, emulator):
    project.declare(jail=filesystem("jail"), data=filesystem("data"))
    project.up()
    gone = project.outputs()["jail"]
    delete_filesystem(emulator, gone)
    assert "- 1 deleted" in project.run("refresh", "--yes", "--skip-preview")
    assert "+ 1 created" in project.up()


def delete_filesystem(emulator, id_):
    """Deletes it with the emulator stopped, as another user's work on the cloud would."""
    emulator.kill()
    with sqlite3.connect(emulator.folder / "nebius.sqlite") as database:
        assert database.execute("DELETE FROM resources WHERE id = ?", (id_,)).rowcount == 1
    emulator.start()


def test_destroy_leaves_nothing_behind(project):
    project.declare(jail=filesystem("jail"))
    project.up()
    assert "- 2 deleted" in project.run("destroy", "--yes", "--skip-preview")
    project.declare(jail=filesystem("jail"))
    assert "+ 2 created" in project.up()


def test_the_declared_environment_reaches_the_plugin(project):
    project.environ["NEBIUS_IAM_TOKEN"] = "wrong"
    project.declare(jail=filesystem("jail"))
    assert "the token is not accepted" in project.up(fails=True)


def test_an_unreachable_emulator_is_named_with_its_remedy(project, emulator):
    emulator.kill()
    project.declare(jail=filesystem("jail"))
    output = project.up(fails=True)
    assert f"no answer from the emulated Nebius API on 127.0.0.1:{emulator.port}" in output
    assert "soperator local up" in output


def test_a_quota_error_is_one_line_and_the_exit_code_tells(project):
    project.declare(jail=filesystem("jail", size_gibibytes=30_000))
    output = project.up(fails=True)
    lines = [line for line in output.splitlines() if "quota" in line]
    assert lines
    assert all(
        "30000 GiB wanted in all, limit 20480 GiB" in line and "docs.nebius.com" in line
        for line in lines
    )
    assert "Traceback" not in output


def test_a_preview_refuses_what_the_api_would(project):
    project.declare(jail=filesystem("jail", sizes=3, type="network-sd"))
    output = project.run("preview", fails=True)
    assert "spec.sizes" in output
    assert "did you mean" in output
    assert "'network-sd' is not one of network-ssd" in output


def filesystems(emulator):
    with sqlite3.connect(f"file:{emulator.folder / 'nebius.sqlite'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT id FROM resources WHERE id LIKE 'computefilesystem-%'")
        return [row[0] for row in rows]


def wait_for_calls(emulator):
    """Returns once the emulator has the resource; the operation then runs for 20 s."""
    deadline = time.monotonic() + 60
    while not filesystems(emulator):
        assert time.monotonic() < deadline, "no filesystem was created"
        time.sleep(0.05)


def test_an_interrupted_up_keeps_the_resource_in_the_state(project, emulator):
    emulator.kill()
    emulator.start(latency_s=20)
    project.declare(jail=filesystem("jail"))
    engine = project.start("up", "--yes", "--skip-preview")
    wait_for_calls(emulator)
    os.kill(engine.pid, signal.SIGINT)
    output, _ = engine.communicate(timeout=60)
    assert engine.returncode != 0, output
    assert filesystems(emulator)[0] in project.state()


def test_a_private_key_is_secret_in_the_state_and_survives_a_second_up(project):
    project.declare()
    project.up()
    outputs = project.outputs()
    assert outputs["public_key"].startswith("ssh-ed25519 ")
    assert "OPENSSH PRIVATE KEY" in outputs["private_key"]
    assert "OPENSSH PRIVATE KEY" not in project.state()
    project.up("--expect-no-changes")
    assert project.outputs() == outputs
