"""Measures growth with the number of workers: `make bench-scale`, or python -m tests.bench.scale.

The stack h100-prod with 1, 10, 100 and 1,000 workers against the emulated API of previews: wall
time and peak memory of `pulumi preview` and of `pulumi up` of everything that the cloud's API makes
(no Kubernetes and no Slurm), and the cost work alone for as many nodesets. Memory is the
proportional set size of the engine and its plugins together, without the emulator. Writes
tests/bench/scale.json, unless other work loads the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from infra.local import engine, offline
from infra.local.nebius_api.states import Store, seed
from infra.providers.nebius.schema import Schema
from infra.state import CHECKOUT, Cache, State
from stacks.files import parse_yaml
from stacks.load import STACKS_DIR, load_config
from stacks.spec import StackSpec
from tests.bench.machine import describe

RESULT = Path(__file__).with_name("scale.json")
STACK = "h100-prod"
NUM_WORKERS = (1, 10, 100, 1000)
PREVIEW_LIMIT_S = 5.0
"""Target of the product for the shipped stack, on two cores with warm caches."""
_SHIPPED = "shipped"
_OWNED = ("PULUMI_", "NEBIUS_", "SOPERATOR_")
_SAMPLE_S = 0.1
_INSIDE = (
    "kubernetes:",
    "pulumi:providers:kubernetes",
    "command:",
    "soperator:storage:",
    "soperator:kube:",
)
"""How the types begin that act inside the cluster or on a bucket, which previews do not have."""
_NODES = re.compile(r"^( +preset: 8gpu-128vcpu-1600gb\n +nodes: )\d+$", re.MULTILINE)


def main() -> int:
    """Measures, prints, writes; 0 when the preview of the shipped stack keeps its limit."""
    options = _parser().parse_args()
    machine = describe()
    is_quiet = machine["load_before"] <= machine["num_cpus"] / 2
    if not is_quiet:
        print(f"warning: load {machine['load_before']}: figures too high, not written")
    measured = _measure(options.workers)
    preview_s = measured["preview"][_SHIPPED]["wall_s"]
    verdict = "PASS" if preview_s <= PREVIEW_LIMIT_S else "FAIL"
    print(f"preview of {STACK} {preview_s:.2f} s  limit {PREVIEW_LIMIT_S:g} s  {verdict}")
    if options.write and is_quiet:
        result = {"measured_at": datetime.now(UTC).date().isoformat(), "machine": machine}
        result |= {"limits": {"preview_s": PREVIEW_LIMIT_S}, **measured}
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(verdict == "FAIL")


def _measure(sizes: Iterable[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"preview": {}, "up": {}, "cost_cpu_s": {}}
    for size in (_SHIPPED, *map(str, sizes)):
        # A cloud for each: nothing is left over from the last one, and nothing need be destroyed.
        with _fresh_cloud() as (folder, environ):
            config = _shipped(folder) if size == _SHIPPED else _with_workers(folder, int(size))
            _run(environ, "preview", "--json", config)  # fills the caches
            preview, document = _watched(folder, environ, "preview", "--json", config)
            found["preview"][size] = preview
            _say("preview", size, f"{preview['wall_s']:.2f} s, {preview['peak_mib']} MiB")
            if size == _SHIPPED:
                continue
            targets = [f"--target={urn}" for urn in _cloud_urns(document)]
            made, _ = _watched(folder, environ, "up", "--yes", "--skip-preview", config, *targets)
            found["up"][size] = made | {"resources": len(targets)}
            _say("up", size, f"{made['wall_s']:.2f} s, {made['peak_mib']} MiB, {len(targets)} made")
        found["cost_cpu_s"][size] = spent = round(cost_s(int(size)), 3)
        _say("cost", size, f"{spent:.3f} s of CPU for as many nodesets")
    return found


def _say(what: str, size: str, text: str) -> None:
    print(f"{what:<8}{size:>8} workers  {text}", flush=True)


@contextmanager
def _fresh_cloud() -> Iterator[tuple[Path, dict[str, str]]]:
    """A state folder with an emulated cloud, and the environment of both."""
    folder = Path(tempfile.mkdtemp(prefix="soperator-scale-"))
    try:
        _raise_quotas(folder)
        yield folder, _environment(folder)
    finally:
        offline.stop(State(folder))
        shutil.rmtree(folder, ignore_errors=True)


def cost_s(num_sets: int) -> float:
    """Seconds of CPU from a declaration of so many nodesets to its printed bill."""
    from cost.bill.bill import Bill, render
    from cost.prices.book import layered
    from cost.resources.estimate import estimate

    spec = with_worker_sets(num_sets)
    book = layered(spec)
    started = time.process_time()
    total = estimate(spec, book)
    render(Bill(estimate=total, problems=()))
    return time.process_time() - started


def with_worker_sets(num_sets: int, nodes: int = 1) -> StackSpec:
    """The shipped stack with so many sets of so many workers."""
    text = (STACKS_DIR / f"Pulumi.{STACK}.yaml").read_text(encoding="utf-8")
    document: Any = parse_yaml(text.replace("file:$SOPERATOR_SSH_PUBLIC_KEY_FILE", _PUBLIC_KEY))
    spec = load_config(document["config"], STACK, environ={})
    (worker,) = spec.nodes.workers
    sized = replace(worker, min_nodes=nodes, max_nodes=nodes)
    workers = tuple(replace(sized, name=f"worker-{number}") for number in range(num_sets))
    return replace(spec, nodes=replace(spec.nodes, workers=workers))


_PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJGVJRcWE02OPAsk5Nx3B3O4RMs6uxZK6tZKMTZEYFN b"


def _raise_quotas(folder: Path) -> None:
    """A fresh emulated cloud whose quotas let a thousand workers in."""
    store = Store(State(folder).offline / "nebius", Schema(Cache.from_environ().root))
    seed(store, engine.token(State(folder)))
    for quota in store.of_kind("quotaallowance"):
        quota.spec.limit *= 1000
        store.put(quota)
    store.commit()
    store.close()


def _environment(folder: Path) -> dict[str, str]:
    """What `soperator env --offline` prints for a state folder of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWNED)}
    cache = str(Cache.from_environ().root)
    authority = folder / "ca.pem"  # what a kubeconfig is made of; nothing is asked there
    authority.write_text("-----BEGIN CERTIFICATE-----\n", encoding="ascii")
    environ = {**kept, "SOPERATOR_STATE": str(folder), "SOPERATOR_CACHE": cache}
    environ["SOPERATOR_LOCAL_KUBE_CA_FILE"] = str(authority)
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli.main", "env", "--offline"],
        cwd=CHECKOUT,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("export ")]
    return environ | dict(words[1].split("=", 1) for words in lines)


def _shipped(folder: Path) -> str:
    """The option that gives pulumi a copy of the stack file, as it is."""
    return _config(folder, (STACKS_DIR / f"Pulumi.{STACK}.yaml").read_text(encoding="utf-8"))


def _with_workers(folder: Path, num_workers: int) -> str:
    """The option that gives pulumi the stack with another number of workers."""
    text = (STACKS_DIR / f"Pulumi.{STACK}.yaml").read_text(encoding="utf-8")
    changed, count = _NODES.subn(rf"\g<1>{num_workers}", text)
    assert count == 1, "the stack file has another form: change _NODES"
    # Its jobs ask for more nodes than one; its backups wait for charts, which are not here.
    changed = re.sub(r"(module: workloads.*\bnodes: )\d+", r"\g<1>1", changed)
    return _config(folder, re.sub(r"^    backup: .*\n", "", changed, flags=re.MULTILINE))


def _config(folder: Path, text: str) -> str:
    path = folder / f"Pulumi.{STACK}.yaml"
    path.write_text(text, encoding="utf-8")
    return f"--config-file={path}"


def _run(environ: dict[str, str], verb: str, *arguments: str) -> str:
    done = subprocess.run(
        ["pulumi", verb, *arguments, f"--stack={STACK}", "--non-interactive", "--color=never"],
        cwd=CHECKOUT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"pulumi {verb} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _cloud_urns(document: str) -> list[str]:
    """URNs of a preview that need nothing of the Kubernetes API."""
    states = {each["newState"]["urn"]: each["newState"] for each in json.loads(document)["steps"]}

    @cache
    def needs_kubernetes(urn: str) -> bool:
        state = states.get(urn)
        if state is None:
            return False
        needed = [state.get("parent", ""), *state.get("dependencies", [])]
        return state["type"].startswith(_INSIDE) or any(map(needs_kubernetes, needed))

    return sorted(urn for urn in states if not needs_kubernetes(urn))


def _watched(folder: Path, environ: dict[str, str], *arguments: str) -> tuple[dict[str, Any], str]:
    """Wall time of a pulumi command and the highest memory of its processes; what it printed."""
    stop, peak = threading.Event(), [0]
    emulator = _pids(folder)

    def watch() -> None:
        while not stop.wait(_SAMPLE_S):
            peak[0] = max(peak[0], sum(_pss_kib(pid) for pid in _pids(folder) - emulator))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    try:
        printed = _run(environ, *arguments)
        wall_s = time.monotonic() - started
    finally:
        stop.set()
        watcher.join()
    return {"wall_s": round(wall_s, 2), "peak_mib": peak[0] // 1024}, printed


def _pids(folder: Path) -> set[int]:
    """Processes in the environment of a state folder."""
    mark, found = f"SOPERATOR_STATE={folder}".encode(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def _pss_kib(pid: int) -> int:
    """Memory of a process, with its share of what it shares."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=NUM_WORKERS, metavar="N")
    parser.add_argument("--no-write", dest="write", action="store_false", help="keep scale.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
