"""Checkpoints of a run in folders: saved in the background, committed whole, resumed from the best.

Owns when a save waits, which kind is written and what stays. Every rank calls every method at the
same point.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save as dcp_async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from workloads.common.dist import World
from workloads.common.exit_codes import CheckpointError, ConfigError, DataError, full_text
from workloads.common.log import log
from workloads.train import elastic
from workloads.train.checkpoint_choice import Choice
from workloads.train.checkpoint_config import CheckpointConfig
from workloads.train.checkpoint_format import (
    CONFIG,
    ELASTIC,
    ELASTIC_METADATA,
    FULL_WEIGHTS,
    SHARDED,
    STATE,
    Candidate,
    Kind,
    Marker,
    remove_old,
)
from workloads.train.checkpoint_ranks import Ranks
from workloads.train.checkpoint_staging import Staging
from workloads.train.checkpoint_state import (
    capture,
    places_for,
    restore,
    whole_weights,
)
from workloads.train.checkpoint_writer import CommittingWriter, json_writer, weights_writer
from workloads.train.run_folder import RunFolder
from workloads.train.signals import StopRequest
from workloads.train.state import Progress, TrainState

# One rank without a process group is a way to run here, not an accident.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")
# DCP prints the traceback of an error that it also raises.
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.CRITICAL)


class FolderCheckpoints:
    """The `Checkpoints` of workloads.train.state, in the run's folders."""

    def __init__(
        self,
        *,
        folder: RunFolder,
        world: World,
        config: CheckpointConfig,
        keep_last: int,
        stop: StopRequest,
        model_config: str = "{}",
        group: Any = None,
    ) -> None:
        """`model_config`: text of config.json. `group`: a gloo group of the world's ranks that
        nobody else uses; None makes one, which every rank of the job calls.
        """
        self.num_failed_saves = 0
        self.resumed_loss: float | None = None
        """Loss of the step that the checkpoint was saved after, where this process loaded one."""
        self.last_commit_s: float | None = None
        """Unix time of the newest commit of this process; rank 0 alone knows it."""
        self._world, self._config, self._keep_last = world, config, keep_last
        self._stop, self._model_config = stop, model_config
        self._ranks = Ranks(world, timeout_s=config.timeout_s, group=group)
        self._choice = Choice(folder, self._ranks, config)
        self._staging = Staging(self._ranks)
        self._planners: dict[Kind, DefaultSavePlanner] = {}
        self._running: tuple[Path, Future[Any]] | None = None
        self._last_elastic = 0

    @property
    def folder(self) -> RunFolder:
        """Where the run keeps its state; settled by `load`."""
        return self._choice.folder

    def due(self, step: int) -> bool:
        """Whether an elastic checkpoint falls on `step`, beside what the loop saves by itself."""
        every = self._config.elastic_every
        return bool(every) and step % every == 0

    def load(self, state: TrainState) -> bool:
        """Fill `state` from the checkpoint that this run starts from; False: from nothing."""
        chosen = self._choice.choose(state.progress.fingerprint)
        if chosen is None:
            return False
        try:
            values = json.loads((chosen.path / STATE).read_text(encoding="utf-8"))
            saved = Progress(**{name: values[name] for name in Progress.__slots__})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{chosen.path}: is no checkpoint of this format: {error}") from error
        if saved.fingerprint != state.progress.fingerprint:
            raise ConfigError(
                f"{chosen.path}: was made with another model, data set or train settings; "
                "use those again, or start anew with --resume never"
            )
        is_same_size = saved.world_size == self._world.world_size
        if is_same_size and saved.rows_per_step != state.progress.rows_per_step:
            raise ConfigError(
                f"{chosen.path}: a train step had {saved.rows_per_step} rows, now "
                f"{state.progress.rows_per_step}; restore train.micro_batch_size and "
                "train.gradient_accumulation, or start anew with --resume never"
            )
        reader = FileSystemReader(chosen.path)
        values = places_for(state, reader.read_metadata(), with_rng=is_same_size)
        try:
            dcp_load(
                values,
                storage_reader=reader,
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                **self._ranks.for_dcp,
            )
        except CheckpointException as error:  # no Exception: nothing above would catch it
            raise DataError(f"{chosen.path}: cannot be read: {_cause(error)}") from error
        restore(state, values)
        state.progress = replace(saved, world_size=self._world.world_size)
        self.resumed_loss = chosen.read_marker().loss
        self._last_elastic = saved.step if chosen.kind is ELASTIC else 0
        how = "" if is_same_size else f", saved at world size {saved.world_size}"
        log(f"resumed from {chosen.path} at step {saved.step}{how}")
        if not is_same_size:
            log(f"world size {self._world.world_size}: a step keeps its {saved.rows_per_step} rows")
        return True

    def save(self, state: TrainState, step: int, *, loss: float | None = None) -> None:
        """Commit `state` as of `step`, in a thread where the recipe wants that."""
        self._collect(raises=False)
        stopping = self._ranks.any(bool(self._stop))
        is_elastic = self.due(step) or (stopping and elastic.may_resize())
        kind = ELASTIC if is_elastic else SHARDED
        self._start(state, step, kind, loss=loss, in_background=not stopping)

    def wait(self) -> None:
        """Return when the last save is committed; CheckpointError when it is not."""
        self._collect(raises=True)

    def _start(
        self, state: TrainState, step: int, kind: Kind, *, loss: float | None, in_background: bool
    ) -> None:
        parent = self.folder.elastic_path if kind is ELASTIC else self.folder.path
        target = parent / f"{kind.prefix}-{step}"
        there = Candidate(path=target, kind=kind, step=step)
        if self._ranks.agree(lambda: there.problem() is None if target.exists() else False):
            log(f"{target} is already committed")
            return
        scratch = self._ranks.agree(lambda: _scratch_folder(target))
        values = capture(state)
        own_files = self._own_files(state, step, kind)
        writer = CommittingWriter(
            scratch,
            target,
            kind=kind,
            marker=Marker(
                step=step,
                world_size=self._world.world_size,
                fingerprint=state.progress.fingerprint,
                loss=loss,
                files={},
            ),
            own_files=own_files,
            after_commit=lambda: self._committed(target, kind),
        )
        planner = self._planner(kind)
        options: dict[str, Any] = {
            "storage_writer": writer,
            "planner": planner,
            **self._ranks.for_dcp,
        }
        if in_background and self._config.background and self._staging.has_room(values):
            future = dcp_async_save(values, async_stager=self._staging.stager(), **options)
            assert isinstance(future, Future)
        else:
            future = _done(lambda: dcp_save(values, **options))
        self._running = (target, future)
        future.add_done_callback(lambda done: _clean_up(scratch, done, self._world))

    def _own_files(
        self, state: TrainState, step: int, kind: Kind
    ) -> dict[str, Callable[[Path], None]]:
        whole = whole_weights(state.model, keep=self._world.is_main) if kind is ELASTIC else None
        if not self._world.is_main:
            return {}
        progress = {**asdict(state.progress), "step": step, "world_size": self._world.world_size}
        files = {
            CONFIG: json_writer(self._model_config),
            STATE: json_writer(json.dumps(progress)),
        }
        if whole is not None:
            reason = f"{self._stop.signal_name}" if self._stop else "interval"
            files[ELASTIC_METADATA] = json_writer(elastic.metadata_text(state, step, reason=reason))
            files[FULL_WEIGHTS] = weights_writer(whole)
        return files

    def _committed(self, target: Path, kind: Kind) -> None:
        log(f"saved {target}")
        self.last_commit_s = time.time()
        self._choice.damaged.discard(target)
        for removed in remove_old(
            target,
            kind,
            keep_last=self._keep_last,
            keep_best=self._config.keep_best,
            damaged=self._choice.damaged,
        ):
            log(f"removed {removed}: older than the last {self._keep_last}")

    def _collect(self, *, raises: bool) -> None:
        """End the save that runs, if any."""
        if self._running is None:
            return
        target, future = self._running
        self._running = None
        error = future.exception()
        if error is None:
            return
        self.num_failed_saves += 1
        # The plan that was kept may be known to some ranks only.
        self._planners.clear()
        cause = f"{_cause(error)}; {_free_text(target.parent)}"
        if raises:
            raise CheckpointError(f"{target} was not saved: {cause}; free or repair the disk")
        log(f"{target} was not saved: {cause}; the run goes on from memory")

    def _planner(self, kind: Kind) -> DefaultSavePlanner:
        if kind not in self._planners:
            planner = DefaultSavePlanner(
                flatten_state_dict=False,
                flatten_sharded_tensors=False,
                dedup_save_to_lowest_rank=False,
                enable_plan_caching=True,
            )
            # torch keeps plans by the name of the class; kinds and runs must not share one.
            planner._cached_plans_key = f"{kind.prefix}-{uuid.uuid4()}"
            self._planners[kind] = planner
        return self._planners[kind]


def _scratch_folder(target: Path) -> Path:
    """A new hidden folder beside `target`; those that a killed save left are removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(".*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    return target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")


def _done(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(work())
    except (Exception, CheckpointException) as error:
        future.set_exception(error)
    return future


def _clean_up(scratch: Path, done: Future[Any], world: World) -> None:
    if done.exception() is not None and world.is_main:
        shutil.rmtree(scratch, ignore_errors=True)


def _free_text(folder: Path) -> str:
    """How much room there is once the save that failed is removed."""
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free there"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"


def _cause(error: BaseException) -> str:
    """One line of the first failure of any rank: DCP wraps them by rank."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (inner, _) = min(failures.items())
        return f"rank {rank}: {_cause(inner)}"
    full = full_text(error)
    return full or f"{type(error).__name__}: {' '.join(str(error).split())}"
