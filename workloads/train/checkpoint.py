"""Checkpoints of a run: saved in the background, committed whole, resumed from the best."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save as dcp_async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from workloads.common import atomic
from workloads.common.dist import World
from workloads.common.exit_codes import CheckpointError, ConfigError, DataError, full_text
from workloads.common.log import at, log
from workloads.common.record import utc_now
from workloads.recipes.train import CheckpointConfig
from workloads.train import checkpoint_state, run_folder
from workloads.train.loop import Progress, TrainState, Validated
from workloads.train.run_folder import (
    CONFIG,
    ELASTIC,
    ELASTIC_METADATA,
    FULL_WEIGHTS,
    SHARDED,
    STATE,
    Candidate,
    Digest,
    Kind,
    Marker,
    RunFolder,
    candidates,
    digest,
    move_aside,
    remove_old,
)
from workloads.train.strategy import whole_weights

if TYPE_CHECKING:
    from workloads.train.run import StopRequest

METADATA = ".metadata"
MIN_NODES, MAX_NODES = "SOPERATOR_MIN_NODES", "SOPERATOR_MAX_NODES"
# One rank without a process group is a way to run here, not an accident.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")
# DCP prints the traceback of an error that it also raises.
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.CRITICAL)


class Answer(list[WriteResult]):
    """What one rank wrote, with the digests of its files; DCP carries it to rank 0."""

    digests: Mapping[str, Digest]


class CommittingWriter(FileSystemWriter):
    """Writes into `scratch`; `finish`, on rank 0, makes it `target`.

    Every rank's file is written, flushed and hashed; then rank 0, which has the answers of all,
    writes the metadata and the marker and renames the folder.
    """

    def __init__(
        self,
        scratch: Path,
        target: Path,
        *,
        kind: Kind,
        marker: Marker,
        own_files: Mapping[str, Callable[[Path], object]],
        after_commit: Callable[[], None],
    ) -> None:
        """`own_files`: what rank 0 writes beside the slices, by name; empty on other ranks."""
        super().__init__(scratch, sync_files=True, overwrite=False)
        self._scratch, self._target = scratch, target
        self._kind, self._marker = kind, marker
        self._own_files = own_files
        self._after_commit = after_commit

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Write this rank's files and return what they hold."""
        for name, write in self._own_files.items():
            write(self._scratch / name)
            atomic.fsync_path(self._scratch / name)
        answer = Answer(super().write_data(plan, planner).value())
        names = {result.storage_data.relative_path for result in answer} | set(self._own_files)
        answer.digests = {name: digest(self._scratch / name) for name in sorted(names)}
        future: TorchFuture[list[WriteResult]] = TorchFuture()
        future.set_result(answer)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit; DCP calls it on rank 0 when every rank has written."""
        super().finish(metadata, results)
        files: dict[str, Digest] = {METADATA: digest(self._scratch / METADATA)}
        for answer in results:
            assert isinstance(answer, Answer)
            files |= answer.digests
        marker = replace(self._marker, files=files)
        atomic.write_text(self._scratch / self._kind.marker, marker.to_json())
        if self._target.exists():
            log(f"{self._target} is damaged; kept as {move_aside(self._target).name}")
        self._scratch.rename(self._target)
        atomic.fsync_path(self._target.parent)
        self._after_commit()


def json_writer(text: str) -> Callable[[Path], object]:
    """Return what writes `text` to a path."""
    return lambda path: path.write_text(text, encoding="utf-8")


def weights_writer(weights: dict[str, Any]) -> Callable[[Path], None]:
    """Return what writes whole weights as safetensors to a path."""

    def write(path: Path) -> None:
        from safetensors.torch import save_file

        save_file(weights, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors writes 0600; who evaluates may be another user

    return write


class Choice:
    """Which checkpoint a run starts from: the newest that is whole, and that it may load."""

    def __init__(self, folder: RunFolder, ranks: World, config: CheckpointConfig) -> None:
        self.folder = folder
        """The run's folder; another one after `choose` where the run goes on in that of before."""
        self.damaged: set[Path] = set()
        """What could not be loaded: no run may count on it."""
        self._ranks, self._config = ranks, config

    def choose(self, fingerprint: str) -> Candidate | None:
        """The candidate that is tried first and is whole, agreed on by all ranks."""
        resume = self.folder.resume
        restarted = any(self._ranks.gather(run_folder.was_restarted()))
        listed = self._ranks.agree(
            lambda: self.folder.candidates(restarted=restarted, fingerprint=fingerprint)
        )
        left_out: list[Candidate] = []
        for found in listed:
            is_named = self.folder.is_explicit and found.path == Path(resume)
            reason = self._problem(found)
            if reason is not None:
                self.damaged.add(found.path)
            if reason is None and self._is_other_size(found):
                if is_named:
                    raise self._refusal(found)
                left_out.append(found)
                reason = "another world size, and train.checkpoint.same_world_size_only is set"
            if reason is None:
                self._take_folder(found, restarted=restarted)
                return found
            if is_named:
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

    def best(self, validated: Validated) -> Candidate | None:
        """The checkpoint of the best validation, where it is whole."""
        places = (self.folder.chkpt, self.folder.elastic)
        run = validated.best_run or f"{self.folder.job}/{self.folder.name}"
        found = self._ranks.agree(lambda: candidates([place / run for place in places]))
        step = validated.best_step
        return next((c for c in found if c.step == step and self._problem(c) is None), None)

    def _take_folder(self, start: Candidate | None, *, restarted: bool) -> None:
        path = start.path if start else None
        self.folder = self._ranks.agree(lambda: self.folder.settled(path, restarted=restarted))

    def _is_other_size(self, found: Candidate) -> bool:
        if not self._config.same_world_size_only or found.kind is ELASTIC:
            return False
        size = self._ranks.agree(lambda: found.read_marker().world_size)
        return size != self._ranks.world_size

    def _refusal(self, found: Candidate) -> ConfigError:
        others = self._ranks.agree(lambda: candidates(self.folder.folders_of_elastic(found.path)))
        good = next(
            (each for each in others if each.kind is ELASTIC and self._problem(each) is None), None
        )
        use = f"resume from {good.path}" if good else "no elastic checkpoint is there: unset it"
        size = self._ranks.agree(lambda: found.read_marker().world_size)
        mine = self._ranks.world_size
        return ConfigError(
            f"{found.path} was saved at world size {size}, this run has {mine}, and "
            f"train.checkpoint.same_world_size_only is set; {use}"
        )

    def _problem(self, found: Candidate) -> str | None:
        """Why `found` cannot be loaded; its files are hashed by all ranks in parallel."""
        mine = found.problem(share=self._ranks.rank, of=self._ranks.world_size)
        problems = self._ranks.gather(mine)
        return next((each for each in problems if each is not None), None)


def may_resize() -> bool:
    """Whether this job was submitted with a smallest number of nodes below its largest."""
    return os.environ.get(MIN_NODES, "") != os.environ.get(MAX_NODES, "")


def metadata_text(state: TrainState, step: int, *, reason: str) -> str:
    """Return `elastic_metadata.json`: why an elastic checkpoint was written, and by what job."""
    progress, world = state.progress, state.world
    values = {
        "format_version": 1,
        "step": step,
        "world_size": world.world_size,
        "ranks_per_node": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "min_nodes": _number(MIN_NODES),
        "max_nodes": _number(MAX_NODES),
        "strategy": state.strategy,
        "rows_per_step": progress.rows_per_step,
        "position": progress.position,
        "reason": reason,
        "versions": {"torch": metadata.version("torch")},
        "created_at": utc_now(),
    }
    return json.dumps(values, indent=1)


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None


class FolderCheckpoints:
    """Checkpoints in the run's folders; every rank calls every method at the same point."""

    def __init__(
        self,
        *,
        folder: RunFolder,
        world: World,
        config: CheckpointConfig,
        keep_last: int,
        stop: StopRequest,
        model_config: str = "{}",
    ) -> None:
        """`model_config`: text of config.json. Every rank of the job calls it."""
        self.num_failed_saves = 0
        self.resumed_loss: float | None = None
        """Loss of the step that the checkpoint was saved after, where this process loaded one."""
        self.last_commit_s: float | None = None
        """Unix time of the newest commit of this process; rank 0 alone knows it."""
        self.longest_save_s = 0.0
        self._began_s = time.monotonic()
        self._world, self._config, self._keep_last = world, config, keep_last
        self._stop, self._model_config = stop, model_config
        # In a group of their own, as files are written in a thread while the loop uses the others.
        self._ranks = world.apart(config.timeout_s)
        group = self._ranks.group
        self._for_dcp = {"process_group": group, "no_dist": group is None}
        self._choice = Choice(folder, self._ranks, config)
        self._staging = checkpoint_state.Staging(self._ranks, on_gpu=world.device.type == "cuda")
        self._planners: dict[Kind, DefaultSavePlanner] = {}
        self._running: tuple[Path, Future[Any]] | None = None

    @property
    def folder(self) -> RunFolder:
        """Where the run keeps its state; settled by `load`."""
        return self._choice.folder

    def due(self, step: int) -> bool:
        """Whether an elastic checkpoint falls on `step`, beside what the loop saves by itself."""
        every = self._config.elastic_every
        return bool(every) and step % every == 0

    def is_late(self) -> bool:
        """Whether the recipe's `every_s` have passed since rank 0 began a save, which has ended."""
        every_s = self._config.every_s
        if not every_s or not self._world.is_main:
            return False
        is_writing = self._running is not None and not self._running[1].done()
        return not is_writing and time.monotonic() - self._began_s >= every_s

    def load(self, state: TrainState) -> bool:
        """Fill `state` from the checkpoint that this run starts from; False: from nothing."""
        chosen = self._choice.choose(state.progress.fingerprint)
        if chosen is None:
            return False
        try:
            values = json.loads((chosen.path / STATE).read_text(encoding="utf-8"))
            found = Validated(**values.get("validated", {}))  # older ones have none
            if found.best_step and not found.best_run:
                found = replace(found, best_run="/".join(chosen.path.parts[-3:-1]))
            values["validated"] = found
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
        self._read(chosen, state, with_rng=is_same_size)
        state.progress = replace(saved, world_size=self._world.world_size)
        self.resumed_loss = chosen.read_marker().loss
        how = "" if is_same_size else f", saved at world size {saved.world_size}"
        log(f"resumed from {chosen.path} at step {saved.step}{how}")
        if not is_same_size:
            log(f"world size {self._world.world_size}: a step keeps its {saved.rows_per_step} rows")
        before = values.get("strategy", state.strategy)  # older ones have none
        if before != state.strategy:
            log(
                f"warning: train.strategy: saved under {before}, goes on under {state.strategy}, "
                "which adds gradients up in another order: losses differ in their last digits"
            )
        return True

    def _read(self, chosen: Candidate, state: TrainState, *, with_rng: bool) -> None:
        reader = checkpoint_state.Reader(chosen.path)
        values = checkpoint_state.places_for(state, reader.read_metadata(), with_rng=with_rng)
        at(f"reading {chosen.path}")
        try:
            dcp_load(
                values,
                storage_reader=reader,
                planner=checkpoint_state.Planner(),
                **self._for_dcp,
            )
        except CheckpointException as error:  # no Exception: nothing above would catch it
            raise DataError(f"{chosen.path}: cannot be read: {_cause(error)}") from error
        checkpoint_state.restore(state, values)

    def load_best(self, state: TrainState) -> bool:
        """Put the weights of the best validation into `state`; False where they are not kept."""
        found = self._choice.best(state.progress.validated)
        if found is None:
            log("the best checkpoint is not kept, or not whole: final/ is made of the last")
            return False
        self._read(found, state, with_rng=False)
        log(f"final/ is made of {found.path}, the best one")
        return True

    def save(self, state: TrainState, step: int, *, loss: float | None = None) -> None:
        """Commit `state` as of `step`, in a thread where the recipe wants that."""
        self._collect(raises=False)
        stopping = any(self._ranks.gather(bool(self._stop)))
        is_elastic = self.due(step) or (stopping and may_resize())
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
        at(f"saving {target}")
        self._began_s = began_s = time.monotonic()
        there = Candidate(path=target, kind=kind, step=step)
        if self._ranks.agree(lambda: there.problem() is None if target.exists() else False):
            log(f"{target} is already committed")
            return
        scratch = self._ranks.agree(lambda: _scratch_folder(target))
        values = checkpoint_state.capture(state)
        own_files = self._own_files(state, step, kind)
        best_step = state.progress.validated.best_step if self._config.keep_best else None
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
            after_commit=lambda: self._committed(target, kind, best_step, began_s),
        )
        planner = self._planner(kind)
        options: dict[str, Any] = {
            "storage_writer": writer,
            "planner": planner,
            **self._for_dcp,
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
    ) -> dict[str, Callable[[Path], object]]:
        whole = (
            whole_weights(checkpoint_state.trained_weights(state.model), keep=self._world.is_main)
            if kind is ELASTIC
            else None
        )
        if not self._world.is_main:
            return {}
        progress = {**asdict(state.progress), "step": step, "world_size": self._world.world_size}
        progress["strategy"] = state.strategy
        files = {
            CONFIG: json_writer(self._model_config),
            STATE: json_writer(json.dumps(progress)),
        }
        if whole is not None:
            reason = f"{self._stop.signal_name}" if self._stop else "interval"
            files[ELASTIC_METADATA] = json_writer(metadata_text(state, step, reason=reason))
            files[FULL_WEIGHTS] = weights_writer(whole)
        return files

    def _committed(self, target: Path, kind: Kind, best_step: int | None, began_s: float) -> None:
        log(f"saved {target}")
        self.longest_save_s = max(self.longest_save_s, time.monotonic() - began_s)
        self.last_commit_s = time.time()
        self._choice.damaged.discard(target)
        for removed in remove_old(
            target,
            kind,
            keep_last=self._keep_last,
            best_step=best_step,
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
    atomic.own_folder(target.parent, below=target.parents[2])
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
