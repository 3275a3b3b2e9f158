"""One place decides where the state, the cache and the ports are."""

import os
from pathlib import Path

import pytest

from infra.state import CHECKOUT, Cache, Ports, State
from stacks.errors import UserError
from tests import another_user


def test_the_state_is_in_the_checkout_unless_the_environment_says_otherwise():
    assert State.from_environ({}).root == CHECKOUT / ".soperator"
    assert State.from_environ({"SOPERATOR_STATE": "/x"}).runs("local", "7") == Path(
        "/x/runs/local/7"
    )


def test_a_relative_folder_is_refused_because_plugins_run_elsewhere():
    with pytest.raises(UserError, match=r"^SOPERATOR_CACHE: 'cache' is not absolute"):
        Cache.from_environ({"SOPERATOR_CACHE": "cache"})


def test_the_workloads_environment_is_keyed_by_its_lock_file():
    name = Cache(Path("/c")).workloads_venv.name
    assert name.startswith("workloads-venv-")
    assert len(name.removeprefix("workloads-venv-")) == 12


def test_no_two_parts_of_the_embedded_cloud_share_a_port():
    ports = Ports.from_environ({"SOPERATOR_LOCAL_PORT_BASE": "20000"})
    names = ["nebius_api", "kube_apiserver"]
    names += ["slurmctld", "slurmdbd", "mariadb"]
    used = [getattr(ports, name) for name in names] + [ports.slurmd(i) for i in range(80)]
    assert used[:5] == [20000, 20003, 20004, 20005, 20006]
    assert len(set(used)) == len(used)
    assert max(used) < 20100


@pytest.mark.parametrize("text", ["80", "65437", "many", "-1"])
def test_a_port_base_without_room_is_refused(text):
    with pytest.raises(UserError, match=rf"SOPERATOR_LOCAL_PORT_BASE: '{text}' is no port base"):
        Ports.from_environ({"SOPERATOR_LOCAL_PORT_BASE": text})


def test_more_workers_than_ports_are_refused():
    with pytest.raises(UserError, match=r"worker 80: .* at most 80 workers"):
        Ports(20000).slurmd(80)


@another_user.as_root
def test_a_state_folder_that_a_neighbour_made_first_is_refused(tmp_path: Path) -> None:
    """Whoever owns it exchanges the engine's plugins and the keys in it: root's, in /tmp."""
    os.chown(tmp_path, another_user.UID, another_user.UID)
    with pytest.raises(UserError, match=f"SOPERATOR_STATE: {tmp_path} is of uid 65534"):
        State.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    os.chown(tmp_path, CHECKOUT.stat().st_uid, -1)  # as with sudo in one's own checkout
    assert State.from_environ({"SOPERATOR_STATE": str(tmp_path)}).root == tmp_path
