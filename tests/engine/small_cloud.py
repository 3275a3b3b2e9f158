"""A small deployment driven as the engine drives the provider, fast enough for every timing.

What the engine guarantees is kept: resources in the order of their dependencies, the state of each
kept as soon as its call returns, a partial state kept from an error, the run ended at the first
error, and nothing done twice that the state knows.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.local.nebius_api.__main__ import Emulator, Server
from infra.providers.engine.provider import PartialError
from infra.providers.nebius.provider import NebiusProvider
from stacks.errors import UserError
from tests.engine.cloud_content import Content, content, unfinished

PROJECT = "project-e00p"
SUBNET = "vpcsubnet-e00pdefault"
POLLS = 1
"""How often an operation is asked for before it has ended."""


def declared(size_gib: int = 64) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name -> token, metadata, spec; `id of NAME` stands for another one's id."""
    project = {"parent_id": PROJECT}
    disk = {"size_gibibytes": 128, "type": "network-ssd"}
    jail = {"existing_filesystem": {"id": "id of jail"}, "mount_tag": "jail"}
    template = {
        "resources": {"platform": "cpu-d3", "preset": "4vcpu-16gb"},
        "boot_disk": disk,
        "filesystems": [{**jail, "attach_mode": "READ_WRITE"}],
    }
    return {
        "jail": (
            "nebius:compute/v1:Filesystem",
            project,
            {"type": "network-ssd", "size_gibibytes": size_gib},
        ),
        "kube": (
            "nebius:mk8s/v1:Cluster",
            project,
            {"control_plane": {"version": "1.33", "subnet_id": SUBNET}},
        ),
        "nodes": (
            "nebius:mk8s/v1:NodeGroup",
            {"parent_id": "id of kube"},
            {"version": "1.33", "fixed_node_count": 1, "template": template},
        ),
    }


class SmallCloud:
    """An emulator in a thread whose clock ticks once a call, so that timings repeat exactly."""

    def __init__(self, folder: Path) -> None:
        self.started_at = time.time()
        """Seconds since the epoch of its first call, by its own clock."""
        self.emulator = Emulator(
            folder,
            latency_s=POLLS - 0.5,
            clock=lambda: self.started_at + len(self.emulator.calls),
            calls=deque(),
            token="local-token",
        )
        self.seed = dict(self.emulator.store.resources)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server, self.port = self._run(Server(self.emulator).start(0))

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def content(self) -> Content:
        """Everything that it holds beyond its seed."""
        return content(self.emulator.store, self.seed)

    def unfinished(self) -> list[str]:
        """Operations that still run."""
        return unfinished(self.emulator.store)

    def empty(self) -> None:
        """Forgets all but the seed: what was made, its idempotency keys, and every fault."""
        store = self.emulator.store
        for id_ in list(store.resources):
            if id_ not in self.seed:
                store.drop(id_)
        store.operations.clear()
        store._database.execute("DELETE FROM idempotency")
        self.emulator.faults.plant([])

    def plant(self, **fault: Any) -> None:
        """Plants one fault in place of all others; none without arguments."""
        self.emulator.faults.plant([{"method": "", **fault}] if fault else [])

    def stop(self) -> None:
        """Ends it."""
        self._run(self._server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self.emulator.store.close()


@dataclass
class Deployment:
    """What one state file knows, and the verbs that work on it."""

    provider: NebiusProvider
    state: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    """Name -> id, inputs, state; in the order of creation."""

    def up(self, **changes: Any) -> None:
        """Creates what is missing and updates what differs; stops at the first error."""
        for name, (token, metadata, spec) in declared(**changes).items():
            inputs = self._inputs(name, token, metadata, spec)
            if name not in self.state:
                self._create(name, token, inputs)
            elif self.state[name][1] != inputs:
                self._update(name, token, inputs)

    def destroy(self) -> None:
        """Deletes what the state knows, last first; stops at the first error."""
        for name in reversed(list(self.state)):
            id_, _, state = self.state[name]
            self.provider.of(declared()[name][0]).delete(id_, state)
            del self.state[name]

    def _inputs(
        self, name: str, token: str, metadata: dict[str, Any], spec: dict[str, Any]
    ) -> dict[str, Any]:
        new = {"metadata": {"name": name, **metadata}, "spec": spec}
        inputs, problems = self.provider.of(token).check({}, self._resolved(new))
        assert not problems
        return inputs

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._resolved(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._resolved(one) for one in value]
        if isinstance(value, str) and value.startswith("id of "):
            return self.state[value.removeprefix("id of ")][0]
        return value

    def _urn(self, name: str, token: str) -> str:
        return f"urn:pulumi:test::small::{token}::{name}"

    def _create(self, name: str, token: str, inputs: dict[str, Any]) -> None:
        try:
            id_, state = self.provider.of(token).create(self._urn(name, token), inputs)
        except PartialError as error:
            self.state[name] = error.id, inputs, dict(error.state)
            raise
        self.state[name] = id_, inputs, dict(state)

    def _update(self, name: str, token: str, inputs: dict[str, Any]) -> None:
        id_, old, state = self.state[name]
        urn = self._urn(name, token)
        try:
            new = self.provider.of(token).update(urn, id_, state, inputs)
        except PartialError as error:
            # Of a failed update the engine keeps the old inputs: the next run tries it again.
            self.state[name] = error.id, old, dict(error.state)
            raise
        self.state[name] = id_, inputs, dict(new)


def failing(work: Any, *arguments: Any, **options: Any) -> str:
    """Runs it; the one line that it was refused with, empty where it went well."""
    try:
        work(*arguments, **options)
    except UserError as error:
        return str(error)
    return ""
