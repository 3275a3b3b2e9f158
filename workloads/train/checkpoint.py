"""Checkpoints of a run in folders: saved in the background, committed whole, resumed from the best.

Owns when a save waits, which kind is written, what stays, and the order in which checkpoints are
tried at a start. Every rank calls every method at the same point.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save as dcp_async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from workloads.common.dist import World
from workloads.common.exit_codes import CheckpointError, ConfigError, DataError
from workloads.common.log import log
from workloads.train import elastic, run_folder
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
    candidates,
    remove_old,
)
from workloads.train.checkpoint_state import (
    capture,
    num_local_bytes,
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
        self.folder = folder
        self.num_failed_saves = 0
        self._world, self._config, self._keep_last = world, config, keep_last
        self._stop, self._model_config = stop, model_config
        # Its own group: files are written in a thread while the loop uses the others.
        if group is None and world.is_distributed:
            timeout = timedelta(seconds=config.timeout_s)
            group = dist.new_group(backend="gloo", timeout=timeout)
        self._group = group
        self._on_gpu = world.device.type == "cuda"
        self._stager: DefaultStager | None = None
        self._planners: dict[Kind, DefaultSavePlanner] = {}
        self._running: tuple[Path, Future[Any]] | None = None
        self._last_elastic = 0

    def due(self, step: int) -> bool:
        """Whether an elastic checkpoint falls on `step`, beside what the loop saves by itself."""
        every = self._config.elastic_every
        return bool(every) and step % every == 0

    def load(self, state: TrainState) -> bool:
        """Fill `state` from the checkpoint that this run starts from; False: from nothing."""
        chosen = self._choose(state.progress.fingerprint)
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
                process_group=self._group,
                no_dist=self._group is None,
            )
        except CheckpointException as error:  # no Exception: nothing above would catch it
            raise DataError(f"{chosen.path}: cannot be read: {_cause(error)}") from error
        restore(state, values)
        state.progress = replace(saved, world_size=self._world.world_size)
        self._last_elastic = saved.step if chosen.kind is ELASTIC else 0
        how = "" if is_same_size else f", saved at world size {saved.world_size}"
        log(f"resumed from {chosen.path} at step {saved.step}{how}")
        if not is_same_size:
            log(f"world size {self._world.world_size}: a step keeps its {saved.rows_per_step} rows")
        return True

    def save(self, state: TrainState, step: int, *, loss: float | None = None) -> None:
        """Commit `state` as of `step`, in a thread where the recipe wants that."""
        self._collect(raises=False)
        stopping = self._any(bool(self._stop))
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
        if self._agree(lambda: there.problem() is None if target.exists() else False):
            log(f"{target} is already committed")
            return
        scratch = self._agree(lambda: _scratch_folder(target))
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
            "process_group": self._group,
            "no_dist": self._group is None,
        }
        if in_background and self._config.background and self._has_room(values):
            future = dcp_async_save(values, async_stager=self._copy(), **options)
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
        for removed in remove_old(
            target.parent, kind, keep_last=self._keep_last, keep_best=self._config.keep_best
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
        cause = _cause(error)
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

    def _copy(self) -> DefaultStager:
        if self._stager is None:
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=self._on_gpu,
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=self._on_gpu,
                )
            )
        return self._stager

    def _has_room(self, values: dict[str, Any]) -> bool:
        """Whether the host memory of every node takes the copies of its ranks."""
        if self._stager is not None:
            return True
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        need, free = num_local_bytes(values) * ranks, _available_bytes()
        fits = not self._any(need > 0.8 * free)
        if not fits:
            log(
                f"a copy of the state takes {need / 2**30:.1f} GiB of host memory, "
                f"{free / 2**30:.1f} GiB are available: saves block training"
            )
        return fits

    def _choose(self, fingerprint: str) -> Candidate | None:
        """The candidate that is tried first and is whole, agreed on by all ranks."""
        resume = self.folder.resume
        restarted = self._any(run_folder.was_restarted())
        listed = self._agree(
            lambda: self.folder.candidates(restarted=restarted, fingerprint=fingerprint)
        )
        is_explicit = self.folder.is_explicit
        left_out: list[Candidate] = []
        for found in listed:
            reason = self._problem(found)
            if reason is None and self._is_other_size(found):
                if is_explicit:
                    raise self._refusal(found)
                left_out.append(found)
                reason = "another world size, and train.checkpoint.same_world_size_only is set"
            if reason is None:
                self._take_folder(found, restarted=restarted)
                return found
            if is_explicit:
                raise ConfigError(
                    f"train.resume {resume}: {reason}; name a committed checkpoint folder"
                )
            log(f"skipped {found.path}: {reason}")
        if left_out:
            raise self._refusal(left_out[0])
        if restarted or resume == "auto":
            log("no committed checkpoint to resume from; starting at step 0")
        self._take_folder(None, restarted=restarted)
        return None

    def _take_folder(self, start: Candidate | None, *, restarted: bool) -> None:
        path = start.path if start else None
        self.folder = self._agree(lambda: self.folder.settled(path, restarted=restarted))

    def _is_other_size(self, found: Candidate) -> bool:
        if not self._config.same_world_size_only or found.kind is ELASTIC:
            return False
        size = self._agree(lambda: found.read_marker().world_size)
        return size != self._world.world_size

    def _refusal(self, found: Candidate) -> ConfigError:
        others = self._agree(lambda: candidates(self.folder.folders_of_elastic(found.path)))
        good = next(
            (each for each in others if each.kind is ELASTIC and self._problem(each) is None), None
        )
        use = f"resume from {good.path}" if good else "no elastic checkpoint is there: unset it"
        size = self._agree(lambda: found.read_marker().world_size)
        return ConfigError(
            f"{found.path} was saved at world size {size}, this run has "
            f"{self._world.world_size}, and train.checkpoint.same_world_size_only is set; {use}"
        )

    def _problem(self, found: Candidate) -> str | None:
        """Why `found` cannot be loaded; its files are hashed by all ranks in parallel."""
        mine = found.problem(share=self._world.rank, of=self._world.world_size)
        problems = self._gather(mine)
        return next((each for each in problems if each is not None), None)

    def _any(self, flag: bool) -> bool:
        return any(self._gather(flag))

    def _gather(self, value: Any) -> list[Any]:
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self._world.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _agree(self, choose: Callable[[], Any]) -> Any:
        """Rank 0's answer on all ranks; its error is raised on all of them."""
        outcome: Any = None
        if self._world.is_main:
            try:
                outcome = choose()
            except Exception as error:
                outcome = error
        if self._group is not None:
            box = [outcome]
            dist.broadcast_object_list(
                box, group_src=0, group=self._group, device=torch.device("cpu")
            )
            outcome = box[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


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


def _cause(error: BaseException) -> str:
    """One line of the first failure of any rank: DCP wraps them by rank."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (inner, _) = min(failures.items())
        return f"rank {rank}: {_cause(inner)}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _available_bytes() -> int:
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
