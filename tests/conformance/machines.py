"""Machines with a real kubelet and containerd, and the controllers and the DNS of Kubernetes.

All of it lives in a network namespace of its own, in which the test itself is while it goes on:
nothing outside reaches it, and it reaches nothing. Each machine is a kubelet and a containerd in
their own mount and process namespaces, which end with the test: /proc and /sys tell there of the
size that the test gives (what is reserved must fit, what runs needs far less), and settings of the
kernel that a kubelet would change are files. Images are made here: an empty root with a /usr that
the test names, by default this machine's, mounted in, and what the test adds. What is not there:
GPUs, whoever enforces a NetworkPolicy, and control groups of version 2.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clients.kube import KubeClient
from infra.local.kube.api_server import ApiServerConfig, find_api_server
from infra.operate.conformance.cluster import kubeconfig
from infra.operate.conformance.sources import NotRunError, Sources
from tests.ports import free_ports

_BRIDGE = "pods0"
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
    "kube-proxy",
    "coredns",
)
_PAUSE = "registry.example/pause:1"
_START_S = 120.0
_CGROUPS = "/sys/fs/cgroup"
_RUNTIME = (
    *("/run/containerd", "/run/netns", "/run/nri", "/var/lib/cni", "/var/lib/kubelet"),
    "/var/log/containers",
)
"""Where kubelet and containerd write, whatever their settings say: each machine has its own."""
_KERNEL = """\
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
"""
"""What a kubelet sets in the kernel (setupKernelTunables, pkg/kubelet/cm): it finds it set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a machine says that it has."""

    cpus: int
    memory_gib: int
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node: the folder and the process of its kubelet."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of this machine's programs: its name, its files and the words that it starts."""

    name: str
    files: Mapping[str, Path | str] = field(default_factory=dict)
    """Path in the image -> a file or folder of this machine, or a text (a script)."""
    folders: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    no_users: bool = False
    """Whether it lacks /etc/passwd and its like."""
    env: Mapping[str, str] = field(default_factory=dict)

    def layer(self) -> bytes:
        """Its one layer, a tar file."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for folder in (*_FOLDERS, *self.folders):
                info = tarfile.TarInfo(folder)
                info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder.endswith("tmp") else 0o755
                tar.addfile(info)
            for name, target in _LINKS.items():
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
                tar.addfile(info)
            for name, source in {**({} if self.no_users else _USERS), **self.files}.items():
                if isinstance(source, Path):
                    tar.add(source.resolve(), name, filter=_as_root)
                else:
                    data = source.encode()
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = len(data), 0o755
                    tar.addfile(info, io.BytesIO(data))
        return layer.getvalue()

    def config(self, layer: bytes) -> bytes:
        """What containerd reads beside the layer."""
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(self.entrypoint) or None,
                "Env": [f"{name}={value}" for name, value in self.env.items()],
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        return json.dumps(config).encode()


_FOLDERS = ("usr", "proc", "sys", "dev", "run", "tmp", "etc", "var/tmp", "root")
_LINKS = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
    "var/run": "../run",
}
_USERS = {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n", "etc/group": "root:x:0:\n"}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def _registry(images: Sequence[Image]) -> Iterator[int]:
    """The port of a registry that gives these images; it listens on the bridge."""
    answers: dict[str, tuple[str, bytes]] = {}
    for image in images:
        place, _, tag = image.name.partition("/")[2].rpartition(":")
        layer = image.layer()
        config = image.config(layer)
        parts = {_CONFIG: config, _LAYER: layer}
        described = [
            {"mediaType": kind, "digest": _digest(data), "size": len(data)}
            for kind, data in parts.items()
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": described[0],
            "layers": described[1:],
        }
        text = json.dumps(manifest).encode()
        for reference in (tag, _digest(text)):
            answers[f"/v2/{place}/manifests/{reference}"] = (_MANIFEST, text)
        for kind, data in parts.items():
            answers[f"/v2/{place}/blobs/{_digest(data)}"] = (kind, data)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, data = answers.get(self.path.partition("?")[0], ("", b""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Content-Length", str(len(data)))
            if kind:
                self.send_header("Docker-Content-Digest", _digest(data))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815 (http.server's name)

        def log_message(self, format: str, *args: object) -> None:
            """Be silent."""

    server = ThreadingHTTPServer((GATEWAY, 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


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
    images: Sequence[Image],
    *,
    mounts: Mapping[str, Path] | None = None,
    prepare: Callable[[str], str] = lambda _: ":",
) -> Iterator[dict[str, Machine]]:
    """Nodes that are ready, by their names, and the controllers that give them pods.

    `mounts` are folders that every container has: path in the container -> folder; /usr is this
    machine's own unless it is among them.
    `prepare(name)` is a line of shell for that machine's own mounts, before its kubelet starts.
    """
    programs = {name: str(sources.program(name)) for name in _PROGRAMS}
    plugins = sources.folder / "bin" / "cni"
    for name in ("bridge", "host-local", "loopback"):
        sources.program(f"cni/{name}")
    for name in ("runc", "unshare", "setpriv", "ip", "iptables"):
        if shutil.which(name) is None:
            packages = "Debian's runc, util-linux, iproute2, iptables"
            raise NotRunError(f"{name} is not installed ({packages})")
    if not Path(_CGROUPS, "cpuset", "cpuset.cpus").exists():
        raise NotRunError(f"{_CGROUPS}/cpuset is not there: this wants control groups of version 1")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kubeconfig"
    file.write_text(kubeconfig(config.access()))
    client = KubeClient(config.access())
    with ExitStack() as stack:
        stack.callback(client.close)
        _make_bridge()
        # A sandbox gets no mounts of base.json, so its image has `sleep` and its libraries inside.
        files = {each.lstrip("/"): Path(each) for each in _with_libraries("/usr/bin/sleep")}
        pause = Image(name=_PAUSE, files=files, entrypoint=("/usr/bin/sleep", "infinity"))
        registry = stack.enter_context(_registry([pause, *images]))
        _start_controllers(stack, programs, config, folder, file)
        made: dict[str, Machine] = {}
        for name, size in sizes.items():
            node = _Node(
                name=name,
                size=size,
                folder=folder / name,
                kubeconfig=file,
                plugins=plugins,
                registry=registry,
            )
            made[name] = stack.enter_context(node.running(programs, mounts or {}, prepare(name)))
        deadline = time.monotonic() + _START_S
        for name, size in sizes.items():
            _until_ready(client, made[name], deadline)
            if size.gpus:
                target = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                gpus = {"capacity": {"nvidia.com/gpu": str(size.gpus)}}
                client.merge_patch(target, {"status": gpus}, subresource="status")
        # It looks for the node of its name, half a minute long where there is none.
        argv = [programs["kube-proxy"], f"--config={_proxy(folder, file, node=next(iter(sizes)))}"]
        stack.enter_context(_process("proxy", argv, folder))
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
def own_network() -> Iterator[None]:
    """This thread, and what it starts, in a network namespace that has loopback alone."""
    if os.geteuid() != 0:
        raise NotRunError("a kubelet and its containers take root")
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        if libc.unshare(_CLONE_NEWNET):
            raise NotRunError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            _ip("link set lo up")
            yield
        finally:
            libc.setns(before.fileno(), _CLONE_NEWNET)


_CLONE_NEWNET = 0x40000000  # sched.h


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def _make_bridge() -> None:
    """Of the pods; it ends with the network namespace, as its settings do."""
    _ip(f"link add {_BRIDGE} type bridge")
    _ip(f"addr add {GATEWAY}/24 dev {_BRIDGE}")
    _ip(f"link set {_BRIDGE} up")
    # What a pod answers to another one crosses the bridge, where its address is translated back.
    settings = Path("/proc/sys/net")
    for name in ("bridge/bridge-nf-call-iptables", "ipv4/ip_forward"):
        if not (settings / name).exists():
            raise NotRunError(f"{settings / name} is not there: a kernel without br_netfilter")
        (settings / name).write_text("1")


@contextmanager
def _process(
    name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            # A killed test takes it along.
            ["setpriv", "--pdeathsig", "KILL", "--", *argv],
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
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


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


def _proxy(folder: Path, file: Path, *, node: str) -> Path:
    """What kube-proxy reads."""
    health, metrics = free_ports(2)
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(file)},
        "hostnameOverride": node,
        "healthzBindAddress": f"127.0.0.1:{health}",
        "metricsBindAddress": f"127.0.0.1:{metrics}",
        "nodePortAddresses": [f"{GATEWAY}/32"],
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
    path = folder / "proxy.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    name: str
    size: Size
    folder: Path
    kubeconfig: Path
    plugins: Path
    registry: int

    @property
    def group(self) -> str:
        """Its control group, below the root of each controller."""
        return f"soperator-conformance-{self.name}"

    @contextmanager
    def running(
        self, programs: Mapping[str, str], mounts: Mapping[str, Path], prepare: str
    ) -> Iterator[Machine]:
        self.folder.mkdir(parents=True)
        port, health = free_ports(2)
        socket = self.folder / "containerd.sock"
        self._write_network()
        self._write_containerd(programs["ctr"], socket, mounts)
        self._write_kubelet(port, health, socket)
        self._write_size()
        labels = ",".join(f"{name}={value}" for name, value in self.size.labels.items())
        script = self.folder / "start.sh"
        script.write_text(
            f"""set -eu
mount --make-rshared /
for place in {" ".join(_RUNTIME)}; do
  mkdir -p own$place $place
  mount --bind own$place $place
done
while read name value; do
  echo $value >${{name##*/}}
  mount --bind ${{name##*/}} /proc/sys/$name
done <<END
{_KERNEL}END
mount --bind meminfo /proc/meminfo
mount --bind node /sys/devices/system/node
cd {_CGROUPS}
mkdir -p {{systemd,cpu,cpuset,memory,cpuacct,pids}}/{self.group}
for file in cpuset.cpus cpuset.mems; do cat cpuset/$file >cpuset/{self.group}/$file; done
cd {self.folder}
{prepare}
{programs["containerd"]} --config {self.folder}/containerd.toml >containerd.log 2>&1 &
for _ in $(seq 200); do
  {programs["ctr"]} --address {socket} version >/dev/null 2>&1 && break
  sleep 0.1
done
exec {programs["kubelet"]} --config={self.folder}/kubelet.yaml --kubeconfig={self.kubeconfig} \\
  --root-dir={self.folder}/kubelet --cert-dir={self.folder}/pki --hostname-override={self.name} \\
  --node-ip={GATEWAY} --node-labels={labels}
"""
        )
        # The first of its processes takes the others along, pods too.
        alone = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
        argv = ["unshare", *alone, "--mount-proc", "bash", str(script)]
        env = {"PATH": f"{Path(programs['containerd']).parent}:{os.environ['PATH']}"}
        try:
            with _process("node", argv, self.folder, env) as child:
                yield Machine(name=self.name, folder=self.folder, process=child)
        finally:
            self._end_groups()

    def _end_groups(self) -> None:
        """Takes its control groups away, once their processes are gone."""
        command = f"find {_CGROUPS} -depth -type d -path '*/{self.group}*' -exec rmdir {{}} +"
        deadline = time.monotonic() + 10
        while (done := subprocess.run(command, shell=True, capture_output=True)).returncode:
            if time.monotonic() > deadline:
                print(done.stderr.decode())
                return
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
                    "bridge": _BRIDGE,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.folder.parent / "addresses"),
                        "ranges": [[{"subnet": f"{_SUBNET}.0/24", "rangeStart": f"{_SUBNET}.10"}]],
                        "routes": [{"dst": "10.96.0.0/16", "gw": GATEWAY}],
                    },
                }
            ],
        }
        (folder / "10-pods.conflist").write_text(json.dumps(plugin))

    def _write_containerd(self, ctr: str, socket: Path, mounts: Mapping[str, Path]) -> None:
        done = subprocess.run([ctr, "oci", "spec"], capture_output=True, text=True, check=True)
        spec = json.loads(done.stdout)
        spec["process"].pop("rlimits", None)
        for path, source in {"/usr": Path("/usr"), **mounts}.items():
            spec["mounts"].append(
                {
                    "destination": path,
                    "type": "bind",
                    "source": str(source),
                    "options": ["rbind", *(["ro"] if path == str(source) else [])],
                }
            )
        hosts = self.folder / "registries" / "_default" / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        host = f"http://{GATEWAY}:{self.registry}"
        hosts.write_text(
            f"server = '{host}'\n[host.'{host}']\ncapabilities = ['pull', 'resolve']\n"
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
[{images}.registry]
config_path = '{self.folder}/registries'
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
            "makeIPTablesUtilChains": False,
            "registerWithTaints": [dict(taint) for taint in self.size.taints] or None,
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


def python_mounts() -> dict[str, Path]:
    """Folders that this Python needs in a container, at their own paths."""
    return {path: Path(path) for path in (sys.prefix, sys.base_prefix)}
