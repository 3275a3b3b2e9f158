"""What a job's script checks on every node before ranks wait for each other. Pure.

Owns the text of the checks: environment, mounts, places, and that all nodes see the same folders.
What makes a model or a data set the same: workloads/train/inputs.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stacks.slurm_spec import JobSpec

_FAIL = 'fail() { echo "soperator: $SOPERATOR_JOB on $(hostname): $1" >&2; exit 78; }'
_PYTHON = r"""
[[ -x $SOPERATOR_PYTHON ]] ||
  fail "$SOPERATOR_PYTHON is missing: run soperator venv --stack $SOPERATOR_STACK, submit again"
""".strip("\n")
_CHECK = r"""
for path in "$@"; do
  mountpoint --quiet "$path" || fail "$path is not mounted: run pulumi up, or drain this node"
done
for path in "$SOPERATOR_PLACE_DATA" "$SOPERATOR_PLACE_MODEL"; do
  [[ -z $path || -r $path ]] || fail "$path cannot be read: bring data and models there first"
done
for path in "$SOPERATOR_PLACE_CHKPT" "$SOPERATOR_PLACE_RESULTS"; do
  [[ -z $path || -w $path ]] || fail "$path cannot be written: check its owner and mode"
done
[[ -z $SOPERATOR_SHARED_MARK || -e $SOPERATOR_SHARED_MARK ]] ||
  fail "${SOPERATOR_SHARED_MARK%/*} is not the folder that the first node sees: name a shared one"
""".strip("\n")

_INPUTS = '"$SOPERATOR_PYTHON" -m workloads.train.inputs'


def check_script(job: JobSpec, *, places_in_memory: Sequence[str] = ()) -> str:
    """The checks of a node; whether an image has its Python is known in the image only."""
    # The prolog makes the job's folder, unless the job's comment is skip_checks, and none in it.
    folders = tuple(
        f'mkdir -p "${place}" || fail "${place} cannot be made: is its node out of memory?"'
        for place in (f"SOPERATOR_PLACE_{name.upper()}" for name in places_in_memory)
    )
    python = (_PYTHON,) if job.container is None else ()
    inputs = ()
    if compares_inputs(job):
        # The recipe names the run in the record that a refusal writes.
        recipe = shlex.join(["--recipe", job.recipe])
        inputs = (f"[[ -z $SOPERATOR_INPUTS ]] || exec {_INPUTS} \\", f"  {recipe}")
    return "\n".join((_FAIL, *python, _CHECK, *folders, *inputs))


def compares_inputs(job: JobSpec) -> bool:
    """Whether nodes are asked what they read; in an image its ranks compare their rows only."""
    return job.module == "workloads.train" and job.nodes > 1 and job.container is None


def name_inputs(job: JobSpec) -> list[str]:
    """Lines for the first node that say what the recipe's model and data are there."""
    if not compares_inputs(job):
        return []
    return [
        "# The model and the data that the recipe names: every node must read the same.",
        "inputs=0",
        f"SOPERATOR_INPUTS=$({_INPUTS} \\",
        f'  {shlex.join(["--recipe", job.recipe, *job.args])} "$@") || inputs=$?',
        "export SOPERATOR_INPUTS",
    ]


def refuse_inputs(job: JobSpec) -> list[str]:
    """The line after the checks, as a mount or an environment that is missing says more."""
    return ["(( inputs == 0 )) || exit $inputs"] if compares_inputs(job) else []
