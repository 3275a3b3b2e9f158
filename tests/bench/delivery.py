"""Measures both ways that code reaches the GPUs: `make bench-delivery`.

The environment, from an empty cache, by the program that `soperator data venv` runs; the image, by
infra/setup/image/build.sh with podman in docker's place, pushed to a registry on loopback and
pulled into an empty store, as a node's first pull; an edit until its job has ended, on the local
Slurm. Each part says its machine and the load that it found, and CPU seconds beside wall seconds,
as those count other work less. A part that cannot be measured here is NOT RUN by name. Prints the
figures and writes tests/bench/delivery.json, where parts that were left out stay as they were.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.clients.ssh import Connection, Result
from infra.jobs import transfer
from infra.operate.conformance.sources import NotRunError
from infra.render.delivery import PackageSource, code_files, hash_files
from infra.state import CHECKOUT
from stacks.load import KEY_FILE_VARIABLE, load_stack
from stacks.spec import StackSpec
from tests.bench.machine import describe
from tests.conftest import PUBLIC_KEY
from tests.image_stand import prepared, ran, registry
from tests.local.jobs_cluster import finish, probe_cluster, release
from tests.unit.jobs.raw import submit

RESULT = Path(__file__).with_suffix(".json")
_EDITS = 3
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class _LoginNode:
    """This machine in the place of a login node that has neither uv nor a cache."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        """What the command says here."""
        found = {
            name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))
        }
        done = subprocess.run(
            ["bash", "-c", command],
            input=stdin,
            capture_output=True,
            env={**found, "PATH": "/usr/bin:/bin", "HOME": str(self._home)},
            check=False,
        )
        texts = {"stdout": done.stdout.decode(), "stderr": done.stderr.decode()}
        return Result(command=command, exit_code=done.returncode, **texts)

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        """The same, with the bytes that it wrote."""
        result = self.run(command, stdin=stdin)
        return result, result.stdout.encode()


def environment(folder: Path) -> dict[str, Any]:
    """Seconds and bytes of the first environment, and seconds of asking for it again."""
    key = folder / "key.pub"
    key.write_text(f"{PUBLIC_KEY}\n", encoding="utf-8")
    spec = replace(
        load_stack("local", environ={KEY_FILE_VARIABLE: str(key)}),
        python_env_path=str(folder / "jail" / "env"),
        code_path=str(folder / "code"),
    )
    files = transfer.lock_files(CHECKOUT)
    seconds, made = _timed(lambda: _make(folder, spec, files))
    again, _ = _timed(lambda: _make(folder, spec, files))
    whole = Path(spec.python_env_path).resolve()
    return {
        "set_up_s": seconds["wall_s"],
        "set_up_cpu_s": seconds["cpu_s"],
        "again_s": again["wall_s"],
        "lock": made.version,
        "disk_bytes": _disk_bytes(whole),
        "disk_with_cache_bytes": _disk_bytes(folder / "jail"),
    }


def _make(folder: Path, spec: StackSpec, files: dict[str, bytes]) -> transfer.Venv:
    return transfer.make(_LoginNode(folder), spec, files, PackageSource())


def image(folder: Path) -> dict[str, Any]:
    """Seconds of build, push and pull; bytes of the image unpacked, and of what is sent."""
    clone, docker, base = prepared(folder)
    script = ["infra/setup/image/build.sh"]

    def run(verb: str, **environ: str) -> str:
        env = {**os.environ, "DOCKER": str(docker), **environ}
        return ran([*script, verb], cwd=clone, env=env).stdout

    built, said = _timed(lambda: run("build"))
    name = said.split()[-1]
    (found,) = json.loads(ran(["podman", "image", "inspect", f"localhost/{name}"]).stdout)
    try:
        with registry(folder) as host:
            team = f"{host}/team"
            ran(["podman", "tag", f"localhost/{name}", f"{team}/{name}"])
            pushed, _ = _timed(lambda: run("push", REGISTRY=team))
            sent = _sent_bytes(host, *name.split(":"))
            node = ["podman", f"--root={folder}/node", f"--runroot={folder}/node-run"]
            pull = [*node, "pull", "-q", "--tls-verify=false", f"{team}/{name}"]
            pulled, _ = _timed(lambda: ran(pull))
            stored = _disk_bytes(folder / "node")
            ran([*node, "rmi", "--all", "--force"])
    finally:
        ran(["podman", "rmi", "--force", found["Id"]])  # by all its names
    return {
        "base": base,
        "builder": re.sub(r"^buildah version (\S+).*", r"buildah \1", _version("buildah")),
        "build_s": built["wall_s"],
        "build_cpu_s": built["cpu_s"],
        "image_bytes": int(found["Size"]),
        "push_s": pushed["wall_s"],
        "sent_bytes": sent,
        "pull_s": pulled["wall_s"],
        "pull_cpu_s": pulled["cpu_s"],
        "node_bytes": stored,
    }


def _version(program: str) -> str:
    return ran([program, "--version"]).stdout.strip()


def _sent_bytes(host: str, repository: str, tag: str) -> int:
    """Bytes of what a node fetches: the compressed layers and the configuration."""
    address = f"http://{host}/v2/team/{repository}/manifests/{tag}"
    request = urllib.request.Request(address, headers={"Accept": ", ".join(_MANIFESTS)})
    with urllib.request.urlopen(request) as answer:
        manifest = json.load(answer)
    return sum(each["size"] for each in [manifest["config"], *manifest["layers"]])


def edit(folder: Path) -> dict[str, Any]:
    """Seconds from an edit here to the end of its job, all of a release sent again each time."""
    took: list[float] = []
    with probe_cluster(folder) as cluster:
        whole = code_files(CHECKOUT, cluster.spec) | release(cluster.spec)
        cluster.deliver(release(cluster.spec))
        with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
            transfer.send(connection, cluster.outputs, whole)
            for number in range(_EDITS):
                text = f"print('edit {number}', flush=True)\n".encode()
                edited = {**whole, "workloads/probe.py": text}

                def run(edited: dict[str, bytes] = edited) -> str:
                    transfer.send(connection, cluster.outputs, edited)
                    digest = hash_files(edited)
                    made = submit(connection, cluster.outputs, "probe", code_hash=digest)
                    return finish(connection, made)[1]

                seconds, log = _timed(run)
                assert log.splitlines()[0] == f"edit {number}", log
                took.append(seconds["wall_s"])
    return {"edit_to_end_s": statistics.median(took), "samples_s": took}


def _timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds of the work, and of CPU in the processes that it started; and its answer."""
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = work()
    wall_s, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall_s, 2), "cpu_s": round(used_s, 1)}, answer


def _disk_bytes(folder: Path) -> int:
    """Bytes of the blocks of all files below; what has several names counts once."""
    found = ran(["du", "--summarize", "--block-size=1", str(folder)]).stdout
    return int(found.split()[0])


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "environment": environment,
    "image": image,
    "edit": edit,
}


def main() -> int:
    """Measure, print, write; 69 where a part could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.delivery")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--no-write", action="store_false", dest="write")
    options = parser.parse_args()
    known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    missing = 0
    for name in options.parts:
        at = {"measured_at": datetime.now(UTC).date().isoformat(), "machine": describe()}
        folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
        try:
            figures = {"outcome": "PASS", **PARTS[name](folder)}
        except NotRunError as error:
            figures, missing = {"outcome": "NOT RUN", "reason": str(error)}, missing + 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        known[name] = at | {"load_after": round(os.getloadavg()[0], 2)} | figures
        for key, value in known[name].items():
            print(f"{name:<12}{key:<24}{json.dumps(value)}", flush=True)
        if options.write:
            RESULT.write_text(f"{json.dumps(known, indent=2)}\n", encoding="utf-8")
    return 69 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
