"""Shell text that the program runs on the login node: readiness, places, the live release. Pure.

Does not connect: infra/components/login.py does, with the pinned host key.
"""

from __future__ import annotations

import shlex
from typing import Final

from infra.render.schedule import install_lines, refuse_lines
from stacks.spec import StackSpec

_READY_TIMEOUT_S: Final = 3600
# Nodes at work are ready too: an update must not wait for running jobs.
_READY_STATES: Final = "idle|mixed|allocated|completing|planned|reserved"


def minimum_nodes(spec: StackSpec) -> tuple[str, ...]:
    """Slurm node names that must be idle: each nodeset's declared minimum, from ordinal 0."""
    return tuple(
        f"{worker.name}-{ordinal}"
        for worker in spec.nodes.workers
        for ordinal in range(worker.min_nodes)
    )


def awaited_nodes(spec: StackSpec) -> tuple[str, ...]:
    """Those of them that must be idle before a deployment counts as ready.

    A set that is made with fewer nodes than it has gets the rest as capacity comes.
    """
    first = {
        worker.name: worker.min_nodes if worker.created_nodes is None else worker.created_nodes
        for worker in spec.nodes.workers
    }
    return tuple(
        name
        for name in minimum_nodes(spec)
        if int(name.rpartition("-")[2]) < first[name.rpartition("-")[0]]
    )


def ready_script(spec: StackSpec, *, timeout_s: int = _READY_TIMEOUT_S) -> str:
    """Waits until `sinfo` shows every awaited node idle or at work; prints the nodes."""
    nodes = awaited_nodes(spec)
    if not nodes:
        return "scontrol ping"
    # Slurm may have put nodes of an elastic set to sleep since; it wakes them for a job.
    elastic = any(worker.min_nodes < worker.max_nodes for worker in spec.nodes.workers)
    states = f"{_READY_STATES}|idle~" if elastic else _READY_STATES
    return f"""
set -eu
deadline=$(( $(date +%s) + {timeout_s} ))
while :; do
  missing=
  states=$(sinfo --noheader --Node --partition=hidden --format='%N %T' 2>&1 | sort -u) || true
  for node in {shlex.join(nodes)}; do
    echo "$states" | grep -qE "^$node ({states})$" || missing="$missing $node"
  done
  [ -n "$missing" ] || break
  if [ "$(date +%s)" -ge "$deadline" ]; then
    echo "not idle after {timeout_s} s:$missing; sinfo says:" >&2
    echo "$states" >&2
    sinfo --list-reasons >&2 || true
    exit 1
  fi
  sleep 0.3
done
echo "{len(nodes)} nodes ready: {shlex.join(nodes)}"
""".strip()


def places_script(spec: StackSpec) -> str:
    """Makes the folders of every shared place and of the code; prints nothing.

    Where users are declared, every one of them may write into the places, as into /tmp.
    """
    own = _paths_of_one_node(spec)
    shared = sorted(
        {
            path
            for path in spec.storage.places.values()
            if not any(f"{path}/".startswith(f"{mount.rstrip('/')}/") for mount in own)
        }
    )
    made = f"mkdir -p {shlex.join([*shared, f'{spec.code_path}/releases'])}"
    return f"{made} && chmod 1777 {shlex.join(shared)}" if spec.soperator.users else made


def _paths_of_one_node(spec: StackSpec) -> list[str]:
    """Mount paths of what each worker has for itself, which the login node does not see."""
    memory = spec.storage.memory
    paths = [] if memory is None else [memory.mount_path]
    for worker in spec.nodes.workers:
        paths += [disk.mount_path for disk in worker.local_disks]
        paths += [] if worker.local_nvme is None else [worker.local_nvme.mount_path]
    return paths


def activate_script(code_path: str, release: str) -> str:
    """Makes `releases/<release>`, wholly delivered by now, the live code in one step.

    With it go its schedules: whoever makes a release live gets what it declares.
    """
    return f"""
set -eu
cd {shlex.quote(code_path)}
test -d releases/{release}/workloads
{refuse_lines(release)}
touch releases/{release}.whole
ln -sfn releases/{release} .current.{release}
mv -T .current.{release} current
for name in workloads jobs configs; do ln -sfn current/$name $name; done
{install_lines()}
""".strip()
