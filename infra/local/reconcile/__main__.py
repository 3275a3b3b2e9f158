"""Runs the reconciler until it is told to stop.

    python -m infra.local.reconcile --state DIR

Three loops: nodes (Nebius API -> Kubernetes nodes), operator (custom resources -> daemons) and k8up
(backups and restores -> restic). Also starts the services again when they end. Daemons outlive it
on purpose. A loop that finds nothing to do comes back later and later, up to two seconds: an idle
stack costs little.
"""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from infra.clients.kube import KubeClient
from infra.local.cloud import Cloud, start_services
from infra.local.k8up import K8up
from infra.local.reconcile.nodes import grown, read_groups, read_projects, reconcile_nodes
from infra.local.reconcile.operator import Operator, log
from infra.local.reconcile.pods import POWER_STATE
from infra.local.slurm.pod import SlurmSetup
from infra.state import Cache, Ports, State

_BUSY_INTERVAL_S: Final = 0.3
_IDLE_INTERVAL_S: Final = 2.0
_SLOWER: Final = 1.5
"""Each pass with nothing to do makes the next pause this much longer."""
_AFTER_ERROR_S: Final = 1.0


def main() -> int:
    """Loop until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    cloud = Cloud(
        state=State(options.state), cache=Cache.from_environ(), ports=Ports.from_environ()
    )
    # A second reconciler waits for the end of the first.
    lock = (options.state / "local" / "reconcile.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    # Each loop has a client of its own.
    client, setup = KubeClient(cloud.kube.access()), SlurmSetup.from_environ()
    steps: list[Callable[[], object]] = [
        Operator(client, cloud.state, cloud.cache, cloud.ports, setup).step,
        K8up(KubeClient(cloud.kube.access()), cloud.state).step,
    ]
    if not options.without_nodes:
        steps += [_mirror_nodes(cloud), partial(start_services, cloud)]
    loops = [threading.Thread(target=_repeat, args=(step, stopped)) for step in steps]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    return 0


def _mirror_nodes(cloud: Cloud) -> Callable[[], bool]:
    client = KubeClient(cloud.kube.access())
    projects: list[str] = []

    def step() -> bool:
        from infra.providers.nebius.sdk import shared_sdk

        if not projects:
            projects.extend(read_projects(shared_sdk()))
        running, in_motion = read_groups(shared_sdk(), projects)
        groups = grown(running, client.list(*POWER_STATE))
        changed = reconcile_nodes(client, groups, client.list("v1", "Node"))
        return changed or in_motion

    return step


def _repeat(step: Callable[[], object], stopped: threading.Event) -> None:
    """Call `step` again and again, rarely while it is idle; an error is logged until it changes."""
    last, pause = "", _BUSY_INTERVAL_S
    while not stopped.is_set():
        try:
            busy = step()
            last = ""
            pause = _BUSY_INTERVAL_S if busy else min(pause * _SLOWER, _IDLE_INTERVAL_S)
        except Exception as error:  # a loop that ends heals nothing any more
            text = f"{type(error).__name__}: {error}"
            if text != last:
                log(text)
            last, pause = text, _AFTER_ERROR_S
        stopped.wait(pause)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local.reconcile")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--without-nodes",
        action="store_true",
        help="leave the nodes and the services alone (for tests that make nodes of their own)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
