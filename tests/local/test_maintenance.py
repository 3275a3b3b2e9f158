"""A pause and a file of the jail on real daemons: everything stops, comes back, and is seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.local.slurm import pod as pods
from infra.render import login
from stacks.spec.cluster import JailFileSpec
from tests.local.slurm_stand import CLUSTER, NAMESPACE, Stand, running_stand

pytestmark = pytest.mark.local
SHOWN = "cat /root/greeting; stat -c %a /root/greeting"


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A cluster without accounting."""
    with running_stand(tmp_path_factory.mktemp("stand")) as made:
        made.apply(made.values())
        made.wait_idle("worker-[0-1]")
        yield made


def test_a_paused_cluster_stops_every_pod_and_comes_back_with_its_files(stand: Stand) -> None:
    assert stand.ssh("echo kept > /mnt/data/note").returncode == 0
    values = stand.values()
    values[CLUSTER]["maintenance"] = "downscale"
    stand.apply(values)
    stand.wait(lambda: not pods.processes(stand.cloud.runtime.folder), "the end of the pods")
    stand.wait_message("SlurmCluster", "soperator", "maintenance is 'downscale'")
    # Nothing is missed: who waits for the workers must get on.
    stand.wait(lambda: stand.status("NodeSet", "worker").get("replicas") == 0, "no workers")
    assert stand.status("NodeSet", "worker")["phase"] == "Ready"
    stand.apply(stand.values())
    stand.wait_idle("worker-[0-1]")
    assert stand.ssh("cat /mnt/data/note").stdout == "kept\n"


def test_a_file_of_the_jail_is_seen_on_every_node_and_follows_its_declaration(
    stand: Stand,
) -> None:
    for content in ("first\n", "second\n"):
        files = [JailFileSpec(path="/root/greeting", content=content, mode="0640")]
        place = {"name": login.JAIL_FILES, "namespace": NAMESPACE}
        texts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place}
        kind = {"apiVersion": login.JAILED_CONFIG_API, "kind": login.JAILED_CONFIG}
        stand.client.apply({**texts, "data": login.jail_file_texts(files)})
        stand.client.apply({**kind, "metadata": place, "spec": login.jailed_config(files)})
        stand.wait(
            lambda wanted=f"{content}640\n": stand.ssh(SHOWN).stdout == wanted, "the file on login"
        )
        job = stand.submit("srun cat /root/greeting", "-N2")
        assert stand.output(job) == content * 2
