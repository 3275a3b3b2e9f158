"""Runs the reconciler until it is told to stop.

    python -m infra.local.reconcile --state DIR

Two loops: nodes (Nebius API -> Kubernetes nodes) and operator (custom resources -> daemons). Also
starts the Nebius API and the API server again when they end. Daemons outlive it on purpose.
"""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from infra.local.cloud import Cloud, start_services
from infra.local.kube.client import KubeClient
from infra.local.reconcile.nodes import read_groups, read_projects, reconcile_nodes
from infra.local.reconcile.operator import Operator, log
from infra.local.state import Cache, Ports, State

_INTERVAL_S: Final = 0.3
_HEAL_INTERVAL_S: Final = 2.0
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
    loops = [threading.Thread(target=_repeat, args=(_operate(cloud), stopped))]
    if not options.without_nodes:
        loops.append(threading.Thread(target=_repeat, args=(_mirror_nodes(cloud), stopped)))
        loops.append(
            threading.Thread(target=_repeat, args=(_heal(cloud), stopped, _HEAL_INTERVAL_S))
        )
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    return 0


def _operate(cloud: Cloud) -> Callable[[], None]:
    operator = Operator(KubeClient(cloud.kube.access()), cloud.state, cloud.cache, cloud.ports)

    def step() -> None:
        operator.step()

    return step


def _mirror_nodes(cloud: Cloud) -> Callable[[], None]:
    client = KubeClient(cloud.kube.access())
    projects: list[str] = []

    def step() -> None:
        from infra.nebius.sdk import shared_sdk

        if not projects:
            projects.extend(read_projects(shared_sdk()))
        groups = read_groups(shared_sdk(), projects)
        reconcile_nodes(client, groups, client.list("v1", "Node"))

    return step


def _heal(cloud: Cloud) -> Callable[[], None]:
    return lambda: start_services(cloud)


def _repeat(
    step: Callable[[], None], stopped: threading.Event, interval_s: float = _INTERVAL_S
) -> None:
    """Call `step` again and again; an error is logged once until it changes."""
    last = ""
    while not stopped.is_set():
        try:
            step()
            last, pause = "", interval_s
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
