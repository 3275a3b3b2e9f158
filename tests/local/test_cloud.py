"""The embedded cloud as a whole: up, healed, broken on purpose, down without a trace."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.clients.kube import KubeClient
from infra.local import cloud, process
from infra.local.cloud import EMULATOR, RECONCILER, SERVICES, Cloud
from infra.local.process import LocalError
from infra.state import Cache, Ports, State
from tests import another_user
from tests.ports import free_base

pytestmark = pytest.mark.local

PROJECT = "project-e00p"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def wait(is_met: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    """Poll until `is_met`."""
    deadline = time.monotonic() + timeout_s
    while not is_met():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A running cloud of its own."""
    folder = tmp_path_factory.mktemp("cloud")
    (folder / "state" / "local").mkdir(parents=True, mode=0o755)  # as earlier versions left it
    made = Cloud(
        state=State(folder / "state"), cache=Cache.from_environ(), ports=Ports(free_base())
    )
    try:
        cloud.check_machine(made)
    except LocalError as error:
        pytest.skip(str(error))
    try:
        cloud.up(made)
        yield made
    finally:
        cloud.down(made, purge=True)


def test_every_part_is_ready(embedded: Cloud) -> None:
    assert [part.name for part in cloud.parts(embedded) if part.ready] == list(SERVICES)


@another_user.as_root
def test_no_part_answers_another_user_of_the_machine(embedded: Cloud) -> None:
    """What the constant token of earlier versions opened, and etcd to everybody."""
    ports, kube = embedded.ports, embedded.kube
    found = another_user.run_python(
        "import grpc._channel, socket, ssl, urllib.request",
        f"""
def tell(name, ask):
    try:
        print(name, ask())
    except OSError as error:
        print(name, getattr(error, "code", None) or type(error).__name__)
    except grpc.RpcError as error:
        print(name, error.code().name)

def url(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    return urllib.request.urlopen(request, context=ssl._create_unverified_context()).read()

tell("etcd", lambda: socket.socket(socket.AF_UNIX).connect("{kube.folder}/etcd.sock:0"))
tell("etcd-port", lambda: socket.create_connection(("127.0.0.1", {ports.base + 1})))
for name, path in (("token", "{embedded.state.token}"), ("tokens", "{kube.folder}/tokens.csv")):
    tell(name, lambda: open(path).read())
secrets = "{kube.endpoint}/api/v1/secrets"
tell("kube", lambda: url(secrets))
tell("kube-token", lambda: url(secrets, Authorization="Bearer local-token"))
tell("objects", lambda: url("http://127.0.0.1:{ports.object_storage}/"))
channel = grpc.insecure_channel("127.0.0.1:{ports.nebius_api}")
ask = channel.unary_unary("/nebius.iam.v1.ProfileService/Get")
tell("api", lambda: ask(b"", metadata=[("authorization", "Bearer local-token")]))
""",
    )
    assert dict(line.split() for line in found.splitlines()) == {
        "etcd": "PermissionError",
        "etcd-port": "ConnectionRefusedError",
        "token": "PermissionError",
        "tokens": "PermissionError",
        "kube": "401",
        "kube-token": "401",
        "objects": "403",
        "api": "UNAUTHENTICATED",
    }
    closed = (embedded.state.token, embedded.state.local, kube.folder)
    assert {path.stat().st_mode & 0o077 for path in closed} == {0}


def test_a_second_up_changes_no_process(embedded: Cloud) -> None:
    before = process.all_processes(embedded.state.run)
    cloud.up(embedded)
    assert process.all_processes(embedded.state.run) == before


def test_the_key_of_the_user_is_private(embedded: Cloud) -> None:
    assert embedded.state.ssh_key.stat().st_mode & 0o077 == 0
    assert embedded.state.ssh_public_key.read_text().startswith("ssh-ed25519 ")


def test_ready_node_groups_become_nodes(embedded: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOPERATOR_NEBIUS_ENDPOINT", "NEBIUS_IAM_TOKEN"):
        monkeypatch.setenv(name, embedded.environment()[name])
    group = _make_node_group()
    client = KubeClient(embedded.kube.access())
    wait(lambda: len(client.list("v1", "Node")) == 2, "two nodes")
    node = client.list("v1", "Node")[0]
    client.close()
    assert node["metadata"]["name"].startswith(group)
    assert node["metadata"]["labels"]["slurm.nebius.ai/nodeset-name"] == "worker"
    assert node["metadata"]["annotations"]["local.soperator/filesystems"].startswith("jail=")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    wait(lambda: _taints(embedded) == [TAINT], "taint")


@pytest.mark.parametrize("name", [name for name in SERVICES if name != RECONCILER])
def test_a_killed_part_comes_back(embedded: Cloud, name: str) -> None:
    killed = _pid(embedded, name)
    cloud.kill_part(embedded, name)
    wait(lambda: _pid(embedded, name) not in (0, killed), f"new {name}")
    wait(lambda: all(part.ready for part in cloud.parts(embedded)), "ready parts")


def test_a_killed_reconciler_comes_back(embedded: Cloud) -> None:
    shell = _pid(embedded, RECONCILER)
    killed = _child(shell)
    os.kill(killed, signal.SIGKILL)
    wait(lambda: _child(shell) not in (0, killed), "new reconciler")


def test_what_a_killed_reconciler_left_ends_when_it_is_started_again(embedded: Cloud) -> None:
    """Its shell is killed and its child goes on: two reconcilers would undo each other's work."""
    shell = _pid(embedded, RECONCILER)
    left = _child(shell)
    os.kill(shell, signal.SIGKILL)
    wait(lambda: _pid(embedded, RECONCILER) == 0, "the end of its shell")
    cloud.start_reconciler(embedded)
    # A zombie has no command line; who reaps it is the machine's affair.
    wait(lambda: not _command_line(left), "the end of what was left")
    wait(lambda: _child(_pid(embedded, RECONCILER)) != 0, "new reconciler")


def test_a_planted_quota_fault_meets_one_call(
    embedded: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nebius.aio.service_error import RequestError
    from nebius.api.nebius.compute.v1 import FilesystemServiceClient

    from infra.providers.nebius.sdk import make_sdk

    for name in ("SOPERATOR_NEBIUS_ENDPOINT", "NEBIUS_IAM_TOKEN"):
        monkeypatch.setenv(name, embedded.environment()[name])
    sdk = make_sdk()
    filesystems = FilesystemServiceClient(sdk)
    cloud.plant_fault(embedded, "quota", "Filesystem.*Create$", 1)
    with pytest.raises(RequestError, match="planted fault"):
        filesystems.create(_filesystem("refused")).wait()
    filesystems.create(_filesystem("accepted")).wait().sync_wait(interval=0.05)
    sdk.sync_close()


def test_a_port_in_use_names_the_port_and_the_setting(tmp_path: Path) -> None:
    base = free_base()
    made = Cloud(state=State(tmp_path), cache=Cache.from_environ(), ports=Ports(base))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base))
        taken.listen()
        message = f"{EMULATOR}: port {base} is in use .* set SOPERATOR_LOCAL_PORT_BASE"
        with pytest.raises(LocalError, match=message):
            cloud.start_emulator(made)
    assert process.all_processes(made.state.run) == []


def test_down_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    made = Cloud(state=State(tmp_path), cache=Cache.from_environ(), ports=Ports(free_base()))
    cloud.up(made)
    pids = [item.pid for item in process.all_processes(made.state.run)]
    cloud.down(made, purge=True)
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)
    assert not made.state.local.exists()


def _pid(embedded: Cloud, name: str) -> int:
    found = process.find(name, embedded.state.run)
    return found.pid if found is not None and found.alive else 0


def _child(shell: int) -> int:
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return int(children[0]) if children else 0


def _command_line(pid: int) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


def _taints(embedded: Cloud) -> list[dict[str, str]]:
    client = KubeClient(embedded.kube.access())
    try:
        return client.list("v1", "Node")[0]["spec"].get("taints", [])
    finally:
        client.close()


def _filesystem(name: str) -> object:
    from nebius.api.nebius.common.v1 import ResourceMetadata
    from nebius.api.nebius.compute.v1 import CreateFilesystemRequest, FilesystemSpec

    spec = FilesystemSpec(size_gibibytes=64, type=FilesystemSpec.FilesystemType.NETWORK_SSD)
    metadata = ResourceMetadata(name=name, parent_id=PROJECT)
    return CreateFilesystemRequest(metadata=metadata, spec=spec)


def _make_node_group() -> str:
    """A cluster with one group of two GPU nodes; the group's id."""
    from nebius.api.nebius.common.v1 import ResourceMetadata
    from nebius.api.nebius.compute.v1 import FilesystemServiceClient
    from nebius.api.nebius.mk8s import v1 as mk8s
    from nebius.api.nebius.vpc import v1 as vpc

    from infra.providers.nebius.sdk import make_sdk

    sdk = make_sdk()

    def created(client: object, request: object) -> str:
        operation = client.create(request).wait()  # pyright: ignore
        operation.sync_wait(interval=0.05)
        return operation.resource_id

    jail = created(FilesystemServiceClient(sdk), _filesystem("jail"))
    subnets = vpc.SubnetServiceClient(sdk)
    subnet = subnets.list(vpc.ListSubnetsRequest(parent_id=PROJECT)).wait().items[0].metadata.id
    control_plane = mk8s.ControlPlaneSpec(
        subnet_id=subnet, version="1.33", endpoints=mk8s.ControlPlaneEndpointsSpec()
    )
    cluster = created(
        mk8s.ClusterServiceClient(sdk),
        mk8s.CreateClusterRequest(
            metadata=ResourceMetadata(name="kube", parent_id=PROJECT),
            spec=mk8s.ClusterSpec(control_plane=control_plane),
        ),
    )
    template = mk8s.NodeTemplate(
        metadata=mk8s.NodeMetadataTemplate(labels={"slurm.nebius.ai/nodeset-name": "worker"}),
        taints=[
            mk8s.NodeTaint(
                key="nvidia.com/gpu", value="present", effect=mk8s.NodeTaint.Effect.NO_SCHEDULE
            )
        ],
        resources=mk8s.ResourcesSpec(platform="gpu-l40s-d", preset="2gpu-64vcpu-384gb"),
        filesystems=[
            mk8s.AttachedFilesystemSpec(
                attach_mode=mk8s.AttachedFilesystemSpec.AttachMode.READ_WRITE,
                mount_tag="jail",
                existing_filesystem=mk8s.ExistingFilesystem(id=jail),
            )
        ],
    )
    group = created(
        mk8s.NodeGroupServiceClient(sdk),
        mk8s.CreateNodeGroupRequest(
            metadata=ResourceMetadata(name="worker", parent_id=cluster),
            spec=mk8s.NodeGroupSpec(fixed_node_count=2, template=template),
        ),
    )
    sdk.sync_close()
    return group
