"""Soperator's own operator brings a stack up on machines with kubelets, and a job runs on it.

Real: charts, operator, kruise, the controller of Slurm's files, Kubernetes with its kubelets,
containers, the scripts that start the daemons, Slurm 25.11 with the plugin that puts jobs into the
jail. Made here: the images, of those scripts and this machine's programs (usr_slurm.sh); virtiofs,
for which an overlay with the tag as its source stands; the jail, a copy-on-write view of this
machine's root. Operators run as processes of this machine. The nodes have fewer CPUs than the stack
says, and cgroups of version 1: two lines of Slurm's files say so.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import stacks.load
from infra.cli import context
from infra.cli.main import app
from infra.clients.kube_rules import name_of
from infra.local.kube import api_server
from infra.operate.conformance.cluster import ApiServer, Cluster, running, soperator
from infra.operate.conformance.come_up import ComeUp, declared, definitions
from infra.operate.conformance.sources import NotRunError, Sources
from stacks.load import load_stack
from tests.conformance.machines import (
    GATEWAY,
    Image,
    Size,
    api_server_that_asks_kubelets,
    machines,
    own_network,
)
from tests.conformance.test_controllers import kruise
from tests.ports import free_ports

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]

_STACKS = Path(__file__).parent / "pods"
_REGISTRY = "cr.eu-north1.nebius.cloud/soperator"
_TAG = "4.1.7-slurm25.11.3"
_SYSTEM_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_USR = "usr-slurm-25.11.3"
_AS_PROCESSES = ("kruise", "soperator", "soperatorchecks", "nodeconfigurator")
"""Releases whose controllers are processes here, or are not needed."""
_USERS = ("passwd", "group")
_OF_ETC = (
    *("pam.d", "security/limits.conf", "nsswitch.conf", "ld.so.conf", "ld.so.conf.d"),
    *(
        "ld.so.cache",
        "login.defs",
        "alternatives",
        "ssl/certs",
        "ssh/moduli",
        "supervisor/supervisord.conf",
    ),
    *("bash.bashrc", "profile", "environment", "services", "protocols", "host.conf"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """The stack as it came up."""

    cluster: Cluster
    namespace: str
    ssh: tuple[str, ...]
    key: Path
    host_key: Path
    port: int

    def pods(self) -> dict[str, dict[str, Any]]:
        """Pods by their names, of daemons and of the job that fills the jail."""
        found = self.cluster.client.list("v1", "Pod", self.namespace)
        return {name_of(each): each for each in found}

    def daemons_are_ready(self) -> bool:
        """Whether each daemon's pod is."""
        pods = {name for name, pod in self.pods().items() if ready(pod)}
        return {"controller-0", "login-0", "worker-0", "worker-1"} <= pods

    def typed(self, command: str) -> str:
        """What a command prints on the login node."""
        done = subprocess.run(
            [*self.ssh, command], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def up(sources: Sources, tmp_path_factory) -> Iterator[RunningStack]:
    usr = sources.folder / _USR / "usr"
    if not usr.is_dir():
        raise NotRunError(f"no {usr}: tests/conformance/usr_slurm.sh (docs/conformance.md)")
    for name in ("supervisord", "multilog", "munged", "sshd", "jq"):
        if not any(Path(place, name).exists() for place in ("/usr/bin", "/usr/sbin")):
            packages = "Debian's supervisor, daemontools, munge, openssh-server, jq"
            raise NotRunError(f"{name} is not installed ({packages})")
    folder = tmp_path_factory.mktemp("pods")
    key = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    environ = {"SOPERATOR_SSH_PUBLIC_KEY_FILE": f"{key}.pub"}
    spec = load_stack("pods", _STACKS, environ=environ)
    found = declared(spec, folder / "build")
    way = ComeUp(sources, declared=found)
    step = way.rendered(found, folder)
    assert step.outcome == "PASS", step
    without_controller_pods(way)
    known = give_host_keys(found.own, folder, spec.login.ssh_port)
    with ExitStack() as stack:
        stack.enter_context(own_network())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        api_server_that_asks_kubelets(folder, patch)
        tags = ("jail", "controller-spool", *(f"jail-submount-{name}" for name in ("data", "home")))
        stack.enter_context(filesystems(folder, tags, usr))
        (api,) = free_ports(1)
        config = stack.enter_context(api_server.running(folder, api))
        server = ApiServer(access=config.access(), certificate=config.certificate, key=config.key)
        cluster = Cluster(server)
        stack.callback(cluster.client.close)
        crds, missing = definitions(sources)
        step = way.accepted(found, cluster, crds, tuple(missing.values()))
        assert step.outcome == "PASS", step
        stack.enter_context(kruise(way, sources, cluster, folder / "kruise"))
        until("kruise's webhooks", lambda: kruise_webhooks_are_local(cluster))
        (folder / "operator").mkdir()
        program = sources.program("soperator-operator")
        rendered = way.of_release("soperator")
        operator = folder / "operator"
        stack.enter_context(soperator(program, rendered, cluster=cluster, folder=operator))
        stack.enter_context(
            machines(
                sources,
                config,
                folder / "of",
                sizes(found.nodes),
                images(sources.checkout("soperator") / "images"),
                mounts={"/usr": folder / "usr", "/virtiofs": folder / "virtiofs"},
                prepare=lambda _: "mkdir mnt && mount --bind mnt /mnt",
            )
        )
        writes = [
            str(sources.program("sconfigcontroller")),
            f"--jail-path={folder / 'virtiofs' / 'jail'}",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
            f"--cluster-namespace={spec.cluster.namespace}",
            "--cluster-name=soperator",
        ]
        stack.enter_context(running(writes, server=server, folder=folder / "files", env={}))
        for each in slurm_objects(way):
            # The admission of the operator's webhooks, which did not answer before.
            refused = cluster.accept([each], spec.cluster.namespace).refused
            assert not refused
        port = spec.login.ssh_port
        options = f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes -o BatchMode=yes"
        ssh = ("ssh", *options.split(), "-i", str(key), "-p", str(port), f"root@{GATEWAY}")
        made = RunningStack(
            cluster=cluster,
            namespace=spec.cluster.namespace,
            ssh=ssh,
            key=key,
            host_key=folder / "ssh_host_ed25519_key.pub",
            port=port,
        )
        until("the daemons' pods", made.daemons_are_ready)
        yield made


@pytest.mark.feature("S000-13", "S002-05")
def test_every_daemon_starts_and_a_job_runs_on_both_workers(
    up: RunningStack, record_property
) -> None:
    # It finds the jail filled: with this machine's root.
    (jail,) = [pod for name, pod in up.pods().items() if name.startswith("soperator-populate-jail")]
    assert jail["status"]["phase"] == "Succeeded"
    until("idle nodes", lambda: up.typed("sinfo -h -p main -o '%D %t'") == "2 idle\n")
    job = (
        "#!/bin/bash\nsrun sh -c 'echo $(hostname) $(id -un) "
        "$(df --output=source /mnt/data | tail -1) $(ls -d /mnt/memory)'\n"
    )
    up.typed(
        f"cd /mnt/data && printf '%s' {shlex.quote(job)} > job.sh && sbatch -W -N 2 -o out job.sh"
    )
    told = sorted(up.typed("cat /mnt/data/out").splitlines())
    assert told == [f"worker-{n} root jail-submount-data /mnt/memory" for n in (0, 1)]
    ran = [pod for pod in up.pods().values() if ready(pod) or pod["status"]["phase"] == "Succeeded"]
    record_property("pods run by kubelets", len(ran))
    record_property("versions", up.typed("sinfo -V").strip())


def test_a_worker_whose_pod_is_deleted_comes_back(up: RunningStack) -> None:
    gone = up.pods()["worker-0"]
    up.cluster.client.delete(gone)
    uid = gone["metadata"]["uid"]

    def is_back() -> bool:
        pod = up.pods().get("worker-0")
        return pod is not None and pod["metadata"]["uid"] != uid and ready(pod)

    until("worker-0", is_back)
    # Idle it was all along: what its new slurmd brings is its address.
    address = up.pods()["worker-0"]["status"]["podIP"]
    until("its address", lambda: f"={address} " in up.typed("scontrol show node worker-0"))
    until("idle nodes", lambda: up.typed("sinfo -h -p main -o '%D %t'") == "2 idle\n")
    assert up.typed("srun -w worker-0 hostname") == "worker-0\n"


@pytest.mark.allow_hosts(["127.0.0.1", GATEWAY])
def test_attach_makes_a_stack_of_it_and_a_user_s_first_job_is_followed(
    up: RunningStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, public = "/home/ann/.ssh", Path(f"{up.key}.pub").read_text().strip()
    up.typed(
        f"useradd -m -s /bin/bash ann && mkdir -m 700 {keys} && "
        f"echo {public} > {keys}/authorized_keys && chown -R ann:ann {keys}"
    )
    stack_files = tmp_path / "stacks"
    stack_files.mkdir()
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(stacks.load, "STACKS_DIR", stack_files)
    monkeypatch.setattr(context, "spec", lambda name: load_stack(name, stack_files))

    def typed(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--stack", "real"])
        assert done.exit_code == 0, f"{words}\n{done.output}\n{done.exception!r}"
        return done.output

    found = typed(
        *("attach", f"ann@{GATEWAY}:{up.port}", "--key", str(up.key)),
        *("--host-key", up.host_key.read_text()),
    )
    assert "cpu: 2 nodes worker-[0-1]: 4 CPUs, 10 GiB; partitions main" in found
    assert "Slurm 25.11.3, accounting not kept" in found
    job = re.search(r"look is job (\d+);", typed("submit", "look"))
    assert job is not None
    assert f"job {job[1]} look is COMPLETED" in typed("logs", job[1])
    assert "their price is not known" in typed("pull", job[1])
    assert "PASS" in typed("runs", "list")


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def until(what: str, is_met: Any, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < deadline, f"{what}: not after {seconds:g} s"
        time.sleep(1)


def without_controller_pods(way: ComeUp) -> None:
    """Leaves out the pods of controllers, which run as processes here."""
    for number, each in enumerate(way.renderings):
        if each.name in _AS_PROCESSES:
            kept = [one for one in each.objects if one["kind"] not in ("DaemonSet", "Job")]
            kept = [one for one in kept if one["kind"] != "NodeConfigurator"]
            for one in kept:
                if one["kind"] == "Deployment":
                    one["spec"]["replicas"] = 0
            way.renderings[number] = replace(each, objects=tuple(kept))


def slurm_objects(way: ComeUp) -> Iterator[dict[str, Any]]:
    """Soperator's own objects; SlurmCluster is told of cgroups v1 and of fewer CPUs."""
    for rendering in way.renderings:
        for each in rendering.objects:
            if "slurm.nebius.ai" in each["apiVersion"]:
                if each["kind"] == "SlurmCluster":
                    custom = "SlurmdParameters=config_overrides\n"
                    each["spec"].update(cgroupVersion="v1", customSlurmConfig=custom)
                yield each


def give_host_keys(own: Any, folder: Path, port: int) -> Path:
    """Real keys in the Secret that the engine would have filled; returns the known hosts."""
    keys: dict[str, str] = {}
    for kind in ("rsa", "ecdsa", "ed25519"):
        file = folder / f"ssh_host_{kind}_key"
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(file)], check=True)
        keys[file.name] = file.read_text()
        keys[f"{file.name}.pub"] = Path(f"{file}.pub").read_text()
    (secret,) = [each for each in own if name_of(each) == "login-host-keys"]
    secret.pop("data", None)
    secret["stringData"] = keys
    known = folder / "known_hosts"
    known.write_text(f"[{GATEWAY}]:{port} {keys['ssh_host_ed25519_key.pub']}")
    return known


def kruise_webhooks_are_local(cluster: Cluster) -> bool:
    """Whether kruise has put its loopback address into its webhooks: a Service leads nowhere."""
    hooks = [
        hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for each in cluster.client.list("admissionregistration.k8s.io/v1", kind)
        if "kruise" in name_of(each)
        for hook in each["webhooks"]
    ]
    return bool(hooks) and all("url" in hook["clientConfig"] for hook in hooks)


def sizes(nodes: Any) -> dict[str, Size]:
    """A machine of each role of the stack, and two workers."""
    found: dict[str, Size] = {}
    for node in nodes:
        role = name_of(node).removesuffix("-node")
        labels = {
            name: value
            for name, value in node["metadata"]["labels"].items()
            if not name.startswith("kubernetes.io/")  # of the kubelet itself
        }
        size = Size(cpus=64, memory_gib=256, labels=labels, taints=node["spec"]["taints"])
        found |= {f"{role}-{number}": size for number in range(2 if role == "worker" else 1)}
    return found


@contextmanager
def filesystems(folder: Path, tags: tuple[str, ...], usr: Path) -> Iterator[None]:
    """A filesystem for each tag, and what containers have as /usr; gone with the block."""
    memory = folder / "memory"
    memory.mkdir()
    mounted: list[Path] = []

    def mount(*words: str, at: Path) -> None:
        at.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", *words, str(at)], check=True)
        mounted.append(at)

    def overlay(name: str, lower: str, at: Path) -> None:
        upper, work, empty = (memory / name / each for each in ("upper", "work", "empty"))
        for each in (upper, work, empty):
            each.mkdir(parents=True)
        options = f"lowerdir={lower or empty},upperdir={upper},workdir={work}"
        mount("-t", "overlay", name, "-o", options, at=at)

    try:
        # An overlay's upper folder may not lie in the lower one, which is this machine's root.
        mount("-t", "tmpfs", "memory", at=memory)
        for tag in tags:
            overlay(tag, "/" if tag == "jail" else "", folder / "virtiofs" / tag)
        jail = folder / "virtiofs" / "jail"
        for place in ("var/spool/slurmd", "mnt/host", "usr/lib/slurm"):
            (jail / place).mkdir(parents=True, exist_ok=True)
        for plugin in (usr / "lib" / "x86_64-linux-gnu" / "slurm").glob("*.so"):
            target = f"../x86_64-linux-gnu/slurm/{plugin.name}"
            (jail / "usr/lib/slurm" / plugin.name).symlink_to(target)
        overlay("usr", f"{usr}:/usr", folder / "usr")
        yield
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", "--recursive", "--lazy", str(place)], check=False)


def images(scripts: Path) -> list[Image]:
    """What Soperator's images start with: its own scripts over this machine's programs."""
    of_etc = {f"etc/{name}": path for name in _OF_ETC if (path := Path("/etc", name)).exists()}
    users = {f"etc/{name}": Path("/etc", name) for name in _USERS}
    common = scripts / "common"

    def text(name: str) -> str:
        return (scripts / name).read_text()

    def daemon(name: str, *starts: str) -> Image:
        shared = [f"common/scripts/{each}.sh" for each in ("complement_jail", "bind_slurm_common")]
        return Image(
            name=f"{_REGISTRY}/{name}:{_TAG}",
            files={
                **of_etc,
                "etc/sysctl.conf": "# of a machine that others use too: nothing is set\n",
                "etc/enroot/enroot.conf": common / "enroot" / "enroot.conf",
                "var/log/slurm/multilog/current": "",
                **{f"opt/bin/slurm/{Path(each).name}": text(each) for each in (*starts, *shared)},
            },
            folders=(
                *(f"var/spool/{each}" for each in ("slurmctld", "slurmd", "slurmdbd")),
                *("var/lib/sss/pipes", "var/lib/slurm", "var/log/supervisor", "run/munge"),
                *("mnt/jail", "mnt/jail.upper", "etc/enroot/enroot.conf.d", "etc/slurm"),
                "opt/soperator",
            ),
            entrypoint=(f"/opt/bin/slurm/{Path(starts[0]).name}",),
            no_users=True,
            env=_SYSTEM_PATH,
        )

    munge = {
        "MUNGE_NUM_THREADS": "10",
        "MUNGE_KEY_FILE": "/etc/munge/munge.key",
        "MUNGE_PID_FILE": "/run/munge/munged.pid",
        "MUNGE_SOCKET_FILE": "/run/munge/munge.socket.2",
    }
    return [
        Image(
            name=f"{_REGISTRY}/busybox:latest",
            files={
                # Pods mount virtiofs by a tag and look for `virtiofs` in /proc/mounts: here the tag
                # is an overlay, bound from /virtiofs/TAG.
                "shim/mount": (
                    "#!/bin/bash\nset -- ${@: -2}\nexec /usr/bin/mount --rbind /virtiofs/$1 $2\n"
                ),
                "shim/grep": '#!/bin/bash\nexec /usr/bin/grep "${1/virtiofs/overlay}" "${@:2}"\n',
            },
            env={"PATH": f"/shim:{_SYSTEM_PATH['PATH']}"},
        ),
        daemon("controller_slurmctld", "controller/slurmctld_entrypoint.sh"),
        daemon(
            "worker_slurmd",
            "worker/supervisord_entrypoint.sh",
            "worker/slurmd_entrypoint.sh",
            "worker/worker_init.py",
        ),
        daemon("login_sshd", "login/sshd_entrypoint.sh"),
        Image(
            name=f"{_REGISTRY}/munge:{_TAG}",
            files={
                **of_etc,
                **users,
                "opt/bin/munge_entrypoint.sh": text("munge/munge_entrypoint.sh"),
                "etc/munge/munge.key": "",
            },
            folders=("var/log/munge", "var/lib/munge", "run/munge"),
            entrypoint=("/opt/bin/munge_entrypoint.sh",),
            env={**_SYSTEM_PATH, **munge},
        ),
        Image(
            name=f"{_REGISTRY}/populate_jail:{_TAG}-cuda12.9.0",
            files={**of_etc, **users, "opt/populate": text("jail/populate_jail_entrypoint.sh")},
            folders=("mnt/jail",),
            entrypoint=("/opt/populate",),
            env=_SYSTEM_PATH,
        ),
    ]
