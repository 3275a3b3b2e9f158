"""Machines with a real kubelet and containerd, the controllers of Kubernetes and its names.

Each machine is a kubelet and a containerd in a mount namespace of their own, in which /proc and
/sys tell of the size that the test gives: what is reserved must fit, what runs needs far less. Pods
share one bridge of this machine, whose address CoreDNS and the kubelets listen on; nothing is
routed beyond it. Images are made here: an empty root with this machine's own /usr mounted in, read
only, and what the test adds. What no machine here has: a registry, GPUs, and whoever enforces a
NetworkPolicy.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clients.kube import KubeClient
from infra.local.kube.api_server import ApiServerConfig, find_api_server
from infra.operate.conformance.cluster import kubeconfig
from infra.operate.conformance.sources import NotRunError, Sources
from tests.ports import free_ports

BRIDGE = "soperator-conf0"
_SUBNET = "10.231.0"
GATEWAY = f"{_SUBNET}.1"
DOMAIN = "cluster.local"
_PROGRAMS = (
    "kubelet",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "kube-controller-manager",
    "kube-scheduler",
    "coredns",
)
_PAUSE = "registry.example/pause:1"
_START_S = 120.0
_CGROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a machine says that it has."""

    cpus: int
    memory_gib: int
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node: its kubelet's folder and how to look into its mounts."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    ctr: tuple[str, ...]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command in the machine's mounts."""
        command = ["nsenter", "--target", str(self.process.pid), "--mount", "--", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of this machine's programs: its name, its files and the words that it starts."""

    name: str
    files: Mapping[str, Path | str] = field(default_factory=dict)
    """Path in the image -> a file or folder of this machine, or a text (a script)."""
    folders: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As an archive that `ctr images import` takes."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for folder in (
                "usr",
                "proc",
                "sys",
                "dev",
                "run",
                "tmp",
                "etc",
                "var/tmp",
                "root",
                *self.folders,
            ):
                info = tarfile.TarInfo(folder)
                info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder.endswith("tmp") else 0o755
                tar.addfile(info)
            links = {each: f"usr/{each}" for each in ("bin", "sbin", "lib", "lib64")}
            for name, target in {**links, **self.links}.items():
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
                tar.addfile(info)
            users = {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n", "etc/group": "root:x:0:\n"}
            for name, source in {**users, **self.files}.items():
                if isinstance(source, Path):
                    tar.add(source.resolve(), name, filter=_as_root)
                else:
                    data = source.encode()
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = len(data), 0o755
                    tar.addfile(info, io.BytesIO(data))
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(self.entrypoint) or None,
                "Env": [f"{name}={value}" for name, value in self.env.items()],
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"],
            },
        }
        entry = {"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}
        with tarfile.open(path, "w") as tar:
            for name, data in (
                ("layer.tar", layer.getvalue()),
                ("config.json", json.dumps(config).encode()),
                ("manifest.json", json.dumps([entry]).encode()),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def _as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


@contextmanager
def machines(
    sources: Sources,
    config: ApiServerConfig,
    folder: Path,
    sizes: Mapping[str, Size],
    *,
    mounts: Sequence[Path] = (),
    prepare: Callable[[str], str] = lambda _: ":",
) -> Iterator[dict[str, Machine]]:
    """Nodes that are ready, by their names, and the controllers that give them pods.

    `mounts` are folders of this machine that every container has at the same path, read only.
    `prepare(name)` is a line of shell for that machine's own mounts, before its kubelet starts.
    """
    programs = {name: str(sources.program(name)) for name in _PROGRAMS}
    plugins = sources.folder / "bin" / "cni"
    for name in ("bridge", "host-local", "loopback"):
        sources.program(f"cni/{name}")
    for name in ("runc", "unshare", "nsenter", "ip"):
        if shutil.which(name) is None:
            raise NotRunError(f"{name} is not installed (Debian's runc, util-linux, iproute2)")
    if os.geteuid() != 0:
        raise NotRunError("a kubelet and its containers take root")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kubeconfig"
    file.write_text(kubeconfig(config.access()))
    client = KubeClient(config.access())
    with ExitStack() as stack:
        stack.enter_context(_bridge())
        _start_controllers(stack, programs, config, folder, file)
        made = {}
        for name, size in sizes.items():
            node = _Node(
                name=name, size=size, folder=folder / name, kubeconfig=file, plugins=plugins
            )
            made[name] = stack.enter_context(node.running(programs, mounts, prepare(name)))
        deadline = time.monotonic() + _START_S
        for name, size in sizes.items():
            _until_ready(client, made[name], deadline)
            if size.gpus:
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                gpus = {"capacity": {"nvidia.com/gpu": str(size.gpus)}}
                client.merge_patch(node, {"status": gpus}, subresource="status")
        yield made


def _until_ready(client: KubeClient, machine: Machine, deadline: float) -> None:
    asked = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine.name}}
    while True:
        node: Any = client.get(asked) or {}
        conditions = node.get("status", {}).get("conditions", [])
        if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
            return
        ended = machine.process.poll() is not None
        assert not ended, machine.log("node")[-3000:]
        assert time.monotonic() < deadline, f"{conditions}\n{machine.log('node')[-3000:]}"
        time.sleep(0.5)


@contextmanager
def _bridge() -> Iterator[None]:
    if Path("/sys/class/net", BRIDGE).exists():
        raise NotRunError(f"bridge {BRIDGE} is of another run; `ip link del {BRIDGE}`")
    for words in (
        f"link add {BRIDGE} type bridge",
        f"addr add {GATEWAY}/16 dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ):
        done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotRunError(f"ip {words}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)


@contextmanager
def _process(
    name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **(env or {})},
            start_new_session=True,
        )
    try:
        yield child
    finally:
        with _no_process():
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            with _no_process():
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextmanager
def _no_process() -> Iterator[None]:
    with suppress(ProcessLookupError):
        yield


def _start_controllers(
    stack: ExitStack,
    programs: Mapping[str, str],
    config: ApiServerConfig,
    folder: Path,
    file: Path,
) -> None:
    manager, scheduler = free_ports(2)
    access = f"--kubeconfig={file}"
    loopback = "--bind-address=127.0.0.1"
    argv = [
        programs["kube-controller-manager"],
        access,
        loopback,
        f"--secure-port={manager}",
        "--leader-elect=false",
        f"--service-account-private-key-file={config.folder / 'pki' / 'service-account.key'}",
        f"--root-ca-file={config.ca_file}",
        f"--cert-dir={folder / 'manager'}",
    ]
    stack.enter_context(_process("controller-manager", argv, folder))
    argv = [
        programs["kube-scheduler"],
        access,
        loopback,
        f"--secure-port={scheduler}",
        "--leader-elect=false",
        f"--cert-dir={folder / 'scheduler'}",
    ]
    stack.enter_context(_process("scheduler", argv, folder))
    corefile = folder / "Corefile"
    corefile.write_text(
        f".:53 {{\n  bind {GATEWAY}\n  errors\n"
        f"  kubernetes {DOMAIN} in-addr.arpa {{\n    kubeconfig {file}\n    ttl 0\n  }}\n}}\n"
    )
    argv = [programs["coredns"], "-conf", str(corefile)]
    stack.enter_context(_process("coredns", argv, folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    name: str
    size: Size
    folder: Path
    kubeconfig: Path
    plugins: Path

    @property
    def group(self) -> str:
        """Its control group, below the root of each controller."""
        return f"{BRIDGE}-{self.name}"

    @contextmanager
    def running(
        self, programs: Mapping[str, str], mounts: Sequence[Path], prepare: str
    ) -> Iterator[Machine]:
        self.folder.mkdir(parents=True)
        port, health = free_ports(2)
        socket = self.folder / "containerd.sock"
        self._write_network()
        self._write_containerd(programs["ctr"], socket, mounts)
        self._write_kubelet(port, health, socket)
        self._write_size()
        pause = self.folder / "pause.tar"
        # The mounts of base.json are not made for a sandbox.
        files = {each.lstrip("/"): Path(each) for each in _with_libraries("/usr/bin/sleep")}
        Image(name=_PAUSE, files=files, entrypoint=("/usr/bin/sleep", "infinity")).write(pause)
        ctr = (programs["ctr"], "--address", str(socket), "--namespace", "k8s.io")
        labels = ",".join(f"{name}={value}" for name, value in self.size.labels.items())
        script = self.folder / "start.sh"
        script.write_text(
            f"""set -eu
mount --bind meminfo /proc/meminfo
mount --bind node /sys/devices/system/node
cd {_CGROUPS}
mkdir -p {{systemd,cpu,cpuset,memory,cpuacct,pids}}/{self.group}
for file in cpuset.cpus cpuset.mems; do cat cpuset/$file >cpuset/{self.group}/$file; done
cd {self.folder}
{prepare}
{programs["containerd"]} --config {self.folder}/containerd.toml >containerd.log 2>&1 &
for _ in $(seq 200); do {" ".join(ctr)} version >/dev/null 2>&1 && break; sleep 0.1; done
{" ".join(ctr)} images import --local {pause} >/dev/null
exec {programs["kubelet"]} --config={self.folder}/kubelet.yaml --kubeconfig={self.kubeconfig} \\
  --root-dir={self.folder}/kubelet --cert-dir={self.folder}/pki --hostname-override={self.name} \\
  --node-ip={GATEWAY} --node-labels={labels}
"""
        )
        argv = ["unshare", "--mount", "--propagation", "private", "bash", str(script)]
        env = {"PATH": f"{Path(programs['containerd']).parent}:{os.environ['PATH']}"}
        with _process("node", argv, self.folder, env) as child:
            machine = Machine(name=self.name, folder=self.folder, process=child, ctr=ctr)
            try:
                yield machine
            finally:
                self._end_pods()

    def _end_pods(self) -> None:
        """Ends every container of the machine, which outlives its kubelet, and its groups."""
        shims = subprocess.run(
            ["pgrep", "-f", f"containerd-shim.*{self.folder}/"],
            capture_output=True,
            text=True,
            check=False,
        )
        found = set(shims.stdout.split())
        for pid in found:
            subprocess.run(["pkill", "-KILL", "-P", pid], check=False)
            subprocess.run(["kill", "-KILL", pid], check=False)
        groups = f"find {_CGROUPS} -depth -type d -path '*/{self.group}*' -exec rmdir {{}} +"
        deadline = time.monotonic() + 10
        while subprocess.run(groups, shell=True, capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)

    def _write_network(self) -> None:
        folder = self.folder / "cni"
        folder.mkdir()
        plugin = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.folder.parent / "addresses"),
                        "ranges": [[{"subnet": f"{_SUBNET}.0/24", "rangeStart": f"{_SUBNET}.10"}]],
                        "routes": [{"dst": "0.0.0.0/0", "gw": GATEWAY}],
                    },
                }
            ],
        }
        (folder / "10-pods.conflist").write_text(json.dumps(plugin))

    def _write_containerd(self, ctr: str, socket: Path, mounts: Sequence[Path]) -> None:
        done = subprocess.run([ctr, "oci", "spec"], capture_output=True, text=True, check=True)
        spec = json.loads(done.stdout)
        spec["process"].pop("rlimits", None)
        for path in dict.fromkeys([Path("/usr"), *mounts]):
            spec["mounts"].append(
                {
                    "destination": str(path),
                    "type": "bind",
                    "source": str(path),
                    "options": ["rbind", "ro"],
                }
            )
        base = self.folder / "base.json"
        base.write_text(json.dumps(spec))
        runtime = "plugins.'io.containerd.cri.v1.runtime'"
        images = "plugins.'io.containerd.cri.v1.images'"
        (self.folder / "containerd.toml").write_text(
            f"""version = 3
root = '{self.folder}/containerd'
state = '{self.folder}/run'
[grpc]
address = '{socket}'
[ttrpc]
address = '{socket}.ttrpc'
[{images}]
snapshotter = 'overlayfs'
[{images}.pinned_images]
sandbox = '{_PAUSE}'
[{runtime}]
restrict_oom_score_adj = true
disable_apparmor = true
disable_hugetlb_controller = true
[{runtime}.cni]
bin_dirs = ['{self.plugins}']
conf_dir = '{self.folder}/cni'
[{runtime}.containerd]
default_runtime_name = 'runc'
[{runtime}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
base_runtime_spec = '{base}'
[{runtime}.containerd.runtimes.runc.options]
BinaryName = '{shutil.which("runc")}'
SystemdCgroup = false
"""
        )

    def _write_kubelet(self, port: int, health: int, socket: Path) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": GATEWAY,
            "port": port,
            "healthzPort": health,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "featureGates": {"KubeletInUserNamespace": True},
            "clusterDNS": [GATEWAY],
            "clusterDomain": DOMAIN,
            "evictionHard": {
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "memory.available": "10Mi",
            },
            "podLogsDir": f"{self.folder}/logs",
            "staticPodPath": "",
            "volumePluginDir": f"{self.folder}/plugins",
        }
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(config))

    def _write_size(self) -> None:
        kib = self.size.memory_gib << 20
        real = Path("/proc/meminfo").read_text().splitlines()
        told = {"MemTotal": kib, "MemFree": kib, "MemAvailable": kib}
        lines = [
            f"{name}: {told[name]} kB" if (name := line.partition(":")[0]) in told else line
            for line in real
        ]
        (self.folder / "meminfo").write_text("\n".join(lines) + "\n")
        # A set of CPUs that this machine lacks cannot be given to a group; many NUMA nodes with the
        # same few CPUs are counted, and are the CPUs that it has.
        here = os.cpu_count() or 1
        for number in range(-(-self.size.cpus // here)):
            node = self.folder / "node" / f"node{number}"
            for cpu in range(here):
                topology = node / f"cpu{cpu}" / "topology"
                topology.mkdir(parents=True)
                (topology / "core_id").write_text(f"{cpu}\n")
                (topology / "physical_package_id").write_text("0\n")
                (node / f"cpu{cpu}" / "online").write_text("1\n")
            (node / "meminfo").write_text(f"Node {number} MemTotal: {kib} kB\n")
            (node / "distance").write_text("10\n")


def api_server_that_asks_kubelets(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Has the API server ask a kubelet by its address: no name server knows the machine's name."""
    program = folder / "path" / "kube-apiserver"
    program.parent.mkdir(parents=True)
    option = "--kubelet-preferred-address-types=InternalIP"
    program.write_text(f'#!/bin/sh\nexec {find_api_server()} "$@" {option}\n')
    program.chmod(0o755)
    patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def _with_libraries(program: str) -> list[str]:
    """The program and the files that its loader opens, by their paths below /usr."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
    found = [word for word in done.stdout.split() if word.startswith("/")]
    return [program, *(each if each.startswith("/usr") else f"/usr{each}" for each in found)]


def add_image(machine: Machine, image: Image) -> None:
    """Puts an image on the machine, as a pull would."""
    path = machine.folder / "image.tar"
    image.write(path)
    done = subprocess.run(
        [*machine.ctr, "images", "import", "--local", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path.unlink()


def python_mounts() -> tuple[Path, ...]:
    """Folders that this Python needs in a container."""
    return tuple(dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix)]))
