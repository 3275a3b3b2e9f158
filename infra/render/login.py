"""Shell text that the program runs on the login node: readiness, places, the live release. Pure.

Does not connect: infra/components/login.py does, with the pinned host key.
"""

from __future__ import annotations

import shlex
from typing import Final

from infra.render.schedule import install_lines, refuse_lines
from stacks.mounts import paths_of_one_node
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
    """Waits until `sinfo` shows every awaited node idle or at work; prints the nodes.

    A node of an elastic set that sleeps is woken, once: Slurm does not by itself for a minimum that
    grew, nor where a person powered it down. A new cluster's nodes sleep until they register.
    """
    nodes = awaited_nodes(spec)
    if not nodes:
        return f"set -e\nscontrol ping{_save_lines(spec)}"
    return f"""
set -eu
deadline=$(( $(date +%s) + {timeout_s} ))
woken=
while :; do
  missing=
  states=$(sinfo --noheader --Node --partition=hidden --format='%N %T' 2>&1 | sort -u) || true
  for node in {shlex.join(nodes)}; do
    echo "$states" | grep -qE "^$node ({_READY_STATES})$" || missing="$missing $node"
  done{_wake_lines(spec, nodes)}
  [ -n "$missing" ] || break
  if [ "$(date +%s)" -ge "$deadline" ]; then
    echo "not idle after {timeout_s} s:$missing; sinfo says:" >&2
    echo "$states" >&2
    sinfo --list-reasons >&2 || true
    exit 1
  fi
  sleep 0.3
done{_save_lines(spec)}
echo "{len(nodes)} nodes ready: {shlex.join(nodes)}"
""".strip()


def _save_lines(spec: StackSpec) -> str:
    """Makes slurmctld write its whole state.

    With accounting Slurm 25.11 writes assoc_usage every five minutes, and one that is killed before
    the first time never starts again: "No Assoc usage file to recover" (assoc_mgr.c, 25.11.3).
    """
    return "\nscontrol reconfigure" if spec.slurm.accounting else ""


def _wake_lines(spec: StackSpec, nodes: tuple[str, ...]) -> str:
    elastic = {each.name for each in spec.nodes.workers if each.min_nodes < each.max_nodes}
    sleepers = [name for name in nodes if name.rpartition("-")[0] in elastic]
    if not sleepers:
        return ""
    # One that is powered down is `idle~` to Slurm 25.11; 22.05 does not list it at all.
    return f"""
  for node in $missing; do
    case " {shlex.join(sleepers)} " in *" $node "*) ;; *) continue ;; esac
    case "$woken " in *" $node "*) continue ;; esac
    shown=$(echo "$states" | sed -n "s/^$node //p")
    case $shown in "" | *"~") ;; *) continue ;; esac
    if scontrol update nodename="$node" state=power_up >/dev/null 2>&1; then
      woken="$woken $node"
    fi
  done""".rstrip()


def places_script(spec: StackSpec) -> str:
    """Makes the folders of every shared place and of the code; prints nothing.

    Where users are declared, every one of them may write into the places, as into /tmp.
    """
    own = paths_of_one_node(spec)
    shared = sorted(
        {
            path
            for path in spec.storage.places.values()
            if not any(f"{path}/".startswith(f"{mount}/") for mount in own)
        }
    )
    made = f"mkdir -p {shlex.join([*shared, f'{spec.code_path}/releases'])}"
    return f"{made} && chmod 1777 {shlex.join(shared)}" if spec.soperator.users else made


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
