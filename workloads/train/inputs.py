"""What a run reads, its model and its data: where they lie, and whether nodes have the same.

Owns what makes two folders the same: names and sizes of their files, and the bytes of the small
ones, among them a manifest with the hashes of the large ones. Nothing is written into them.
Usage, in a job's script on its first node: python -m workloads.train.inputs --recipe NAME
prints what it found; with that in SOPERATOR_INPUTS the same line, on each node, compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.common.exit_codes import DataError, ExitCode, WorkloadError, exit_code_of, reason_of
from workloads.common.job import parse_arguments, section_of
from workloads.common.log import log
from workloads.common.places import Places
from workloads.common.record import RunRecord, job_id
from workloads.data.files import files_of
from workloads.recipes import load_recipe
from workloads.train.config import TrainConfig
from workloads.train.tasks import GENERATED, is_generated

if TYPE_CHECKING:
    from workloads.common.dist import World

VARIABLE = "SOPERATOR_INPUTS"
WHOLE_BYTES = 1 << 20
"""Files up to this size count with their bytes; larger ones with their name and size."""


def find_inputs(model: str, config: TrainConfig, places: Places) -> tuple[Path | None, Path | None]:
    """Return the folders of model and data set; None for what is made here."""
    model_dir = None if is_generated(model) else places.model_dir(model)
    dataset = None if config.dataset == GENERATED else places.data_path(config.dataset)
    return model_dir, dataset


def identity(path: Path) -> str:
    """Return a hash that is the same on every node that sees the same files below `path`."""
    digest = hashlib.sha256()
    for file in files_of(path):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path)}\0{size}\0".encode())
        if size <= WHOLE_BYTES:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def refuse_others(expected: Mapping[str, str]) -> None:
    """Raise DataError for every path that is not here what it is on the first node."""
    node = os.uname().nodename
    wrong: list[str] = []
    for name, digest in expected.items():
        path = Path(name)
        try:
            if not path.exists():
                wrong.append(f"{path} is not on {node}")
            elif identity(path) != digest:
                wrong.append(f"{path} on {node} has other files than on the first node")
        except OSError as error:
            wrong.append(f"{error.filename or path} on {node} cannot be read: {error.strerror}")
    if wrong:
        raise DataError(
            f"{'; '.join(wrong)}; every node must read the same model and data: bring them to a "
            "place on a shared filesystem (storage.places)"
        )


def refuse_other_rows(here: World, digest: str) -> None:
    """Raise DataError on every rank where one of them reads other rows than rank 0."""
    first, *others = here.gather((os.uname().nodename, digest))
    wrong = [f"{rank} ({node})" for rank, (node, rows) in enumerate(others, 1) if rows != first[1]]
    if wrong:
        raise DataError(
            f"ranks {', '.join(wrong)} read other rows than rank 0 ({first[0]}); every node must "
            "read the same data: bring it to a place on a shared filesystem (storage.places)"
        )


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Print what a recipe reads, or hold what SOPERATOR_INPUTS says against this node.

    What is refused ends the job before a rank starts, so the run record is written here.
    """
    options = parse_arguments("train", arguments)
    record = RunRecord(kind="train", recipe=options.recipe)
    try:
        expected = os.environ.get(VARIABLE)
        if expected:
            refuse_others(json.loads(expected))
            return ExitCode.OK
        recipe = load_recipe(options.recipe, options.overrides)
        if recipe.train is None:
            raise section_of(recipe, "train")
        found = [path for path in find_inputs(recipe.model, recipe.train, Places()) if path]
        print(json.dumps({str(path): identity(path) for path in found}))
    except (OSError, WorkloadError) as error:
        code = ExitCode.BAD_DATA if isinstance(error, OSError) else exit_code_of(error)
        refuse(record, error, code)
        return code
    return ExitCode.OK


def refuse(record: RunRecord, error: Exception, code: ExitCode) -> None:
    """Say why the job ends, in the log and in its run record."""
    record.outcome, record.exit_code, record.reason = "FAIL", code, reason_of(error)
    log(f"{code.name} (exit {int(code)}): {record.reason}", every_rank=True)
    if not Places().has("results"):
        return
    results_dir = Places().path("results") / job_id()
    results_dir.mkdir(parents=True, exist_ok=True)
    if record.stands(results_dir, is_main=False):
        # The script reads what is printed here.
        record.finish(results_dir, to=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
