"""Whether the data set that a training job reads is on the cluster, asked before it is submitted.

Owns which file is asked for and the refusal. Where a workload looks for it: workloads/common/
places.py; the rows themselves are read by the job only.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from stacks.slurm_spec import TRAIN_MODULE, JobSpec

EXIT: Final = 66
"""sysexits EX_NOINPUT."""
_IMAGE_DATA = "/opt/soperator/data"
_PLACE = "{place:data}"


def prepared_data(
    job: JobSpec, recipe: Mapping[str, Any], places: Mapping[str, str]
) -> tuple[str, ...]:
    """Paths of which one has to be there, first the one to bring it to; () where none is known.

    Other absolute paths, and what an image may hold, are not the login node's to see.
    """
    train, root = recipe.get("train"), places.get("data")
    if job.module != TRAIN_MODULE or job.container is not None or not isinstance(train, dict):
        return ()
    name = train.get("dataset")
    if not isinstance(name, str) or name in ("", "generated") or root is None:
        return ()
    if name.startswith(_PLACE):
        folders = [f"{root}/{name.removeprefix(_PLACE).lstrip('/')}"]
    elif name.startswith(("/", "{")):
        return ()
    else:
        names = dict.fromkeys((name, PurePosixPath(name).name))
        folders = [f"{place}/{each}" for each in names for place in (root, _IMAGE_DATA)]
    # What other tasks read has several names: of them only the folder is asked for.
    chats = train.get("task", "causal_lm") == "causal_lm"
    return tuple(f"{folder}/tokens_train.parquet" if chats else folder for folder in folders)


def refuse_script(reads: Sequence[tuple[str, ...]], places: Mapping[str, str]) -> str:
    """Shell words that print the first path of a group and end with EXIT where none of it is there.

    Bytes must be in it. A login node that does not have the place itself cannot tell. What is sent
    along is read to its end, so that the answer arrives.
    """
    return "".join(_refuse(paths, places["data"]) for paths in dict.fromkeys(reads) if paths)


def _refuse(paths: tuple[str, ...], root: str) -> str:
    tests = [f"[ -d {shlex.quote(root)} ]"]
    tests += [f"[ ! -s {shlex.quote(path)} ]" for path in paths]
    told = f"echo {shlex.quote(paths[0])}"
    return f"if {' && '.join(tests)}; then cat > /dev/null; {told}; exit {EXIT}; fi; "


def refusal(job: str, path: str) -> str:
    """The line for a job whose data is not there."""
    return (
        f"{job}: {path} is not on the cluster, or is empty; prepare it first (soperator submit "
        f"{job} --pipeline submits what {job} needs), bring it with soperator push, or name the "
        "job that makes it with --after ID; nothing was submitted"
    )
