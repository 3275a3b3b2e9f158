"""Which runs belong together: lineage(stack, records), data to training to evaluation to serving.

Owns that figures of one finetune are never mixed with those of another. An evaluation names the
folder of what it measured, and the training that wrote it, the server and the load test name the
same. Numbers of jobs, and so such folders, come again with a new cluster: times bound them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost.run_record import Kind, Outcome, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The runs of one finetune; None for a part that did not run, or whose record is not here."""

    data: RunRecord | None
    training: RunRecord | None
    evaluation: RunRecord | None
    loads: tuple[RunRecord, ...]
    """Load tests of its servers, oldest first."""
    tuned_dir: str | None
    """Folder of the tuned weights inside the jobs; None where no record names it."""

    def holds(self, record: RunRecord) -> bool:
        """Whether the run is one of this finetune, a server of it included."""
        if record.kind == Kind.SERVE:
            return _is_of(record, self.tuned_dir) and not _is_before(record, self.training)
        members = (self.data, self.training, self.evaluation, *self.loads)
        return any(record is each for each in members)


def lineage(stack: str, records: Sequence[RunRecord]) -> Lineage:
    """The finetune that was evaluated last; the one that was trained last before there is one."""
    ordered = sorted(records, key=lambda each: (each.finished_at, each.job_id))
    passed = [each for each in ordered if each.outcome is Outcome.PASS and each.stack == stack]
    evaluation = _last(passed, Kind.EVALUATE)
    tuned_dir = None if evaluation is None else evaluation.tuned_dir
    trainings = [each for each in passed if each.kind == Kind.TRAIN]
    if evaluation is not None and tuned_dir is not None:
        trainings = [
            each
            for each in trainings
            if each.tuned_dir == tuned_dir and each.finished_at <= evaluation.finished_at
        ]
    training = trainings[-1] if trainings else None
    if tuned_dir is None and training is not None:
        tuned_dir = training.tuned_dir
    return Lineage(
        data=_last([each for each in passed if _is_before(each, training)], Kind.PREPARE_DATA),
        training=training,
        evaluation=evaluation,
        loads=tuple(
            each
            for each in ordered
            if each.kind == Kind.LOAD
            and each.outcome is Outcome.PASS
            and _is_of(each, tuned_dir)
            and not _is_before(each, training)
        ),
        tuned_dir=tuned_dir,
    )


def _last(records: Sequence[RunRecord], kind: Kind) -> RunRecord | None:
    found = [each for each in records if each.kind == kind]
    return found[-1] if found else None


def _is_of(record: RunRecord, tuned_dir: str | None) -> bool:
    """Whether a run names these weights; one that names none may be anybody's."""
    return record.tuned_dir is None or tuned_dir is None or record.tuned_dir == tuned_dir


def _is_before(record: RunRecord, training: RunRecord | None) -> bool:
    return training is not None and record.finished_at <= training.started_at
