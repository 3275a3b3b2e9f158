"""Checkpoints of a run: saved in the background, committed whole, resumed from the best.

torch DCP takes what one holds as a flat mapping with the keys `model.<name>`,
`optimizer.<name>.<field>`, `scalars`, `scaler`, `rng.<rank>`. Tensors are the live ones, DTensors
under FSDP2, so a load fills them in place at any world size.
"""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import random
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save as dcp_async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from workloads.common import atomic
from workloads.common.dist import PlainUnpickler, World
from workloads.common.exit_codes import CheckpointError, ConfigError, DataError, full_text
from workloads.common.hardware import available_bytes
from workloads.common.log import at, log
from workloads.common.record import utc_now
from workloads.recipes.train import CheckpointConfig
from workloads.train.inputs import StopRequest
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
    remove_leftovers,
    remove_old,
    scratch_path,
    was_restarted,
)
from workloads.train.strategy import trained_weights, whole_weights

METADATA = ".metadata"
MIN_NODES, MAX_NODES = "SOPERATOR_MIN_NODES", "SOPERATOR_MAX_NODES"
# One rank without a process group is a way to run here, not an accident.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")
# DCP prints the traceback of an error that it also raises.
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.CRITICAL)


class Reader(FileSystemReader):
    """Reads a checkpoint that others may have made: what is no description of it is refused."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what the checkpoint holds; DataError names what else `.metadata` holds."""
        path = Path(self.path) / METADATA
        try:
            with path.open("rb") as file:
                found = PlainUnpickler(file).load()
        except (OSError, EOFError, pickle.UnpicklingError, TypeError, ValueError) as error:
            raise DataError(f"{path}: {error}; name a checkpoint that train wrote") from error
        if not isinstance(found, Metadata):
            raise DataError(f"{path}: is no metadata of a checkpoint; name one that train wrote")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


AS_NAMED = {"flatten_state_dict": False, "flatten_sharded_tensors": False}
"""Options of DCP's planners: keys are the checkpoint's own names, nothing is flattened."""


class Planner(DefaultLoadPlanner):
    """Loads a checkpoint without unpickling, which may run code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take values that are no tensors; torch's own planner would run what is pickled there."""
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            what = re.search(r"GLOBAL (\S+)", str(error))
            raise pickle.UnpicklingError(
                f"{name} holds {what[1] if what else 'no plain values'}, which may run a program; "
                "name a checkpoint that train wrote"
            ) from None


def read(
    folder: Path, places: Callable[[Metadata], dict[str, Any]], **group: Any
) -> dict[str, Any]:
    """Return what `places` makes of a checkpoint's metadata, its tensors filled from the files."""
    reader = Reader(folder)
    values = places(reader.read_metadata())
    at(f"reading {folder}")
    try:
        dcp_load(values, storage_reader=reader, planner=Planner(**AS_NAMED), **group)
    except CheckpointException as error:  # no Exception: nothing above would catch it
        raise DataError(f"{folder}: cannot be read: {_cause(error)}") from error
    return values


SCALARS, SCALER = "scalars", "scaler"


def capture(state: TrainState) -> dict[str, Any]:
    """Return what a checkpoint of `state` holds on this rank; tensors are not copied."""
    values: dict[str, Any] = _model_tensors(state.model)
    scalars: dict[str, dict[str, float]] = {}
    for name, weight in trained_weights(state.model).items():
        for key, value in state.optimizer.state.get(weight, {}).items():
            if isinstance(value, torch.Tensor):
                values[f"optimizer.{name}.{key}"] = value.detach()
            else:
                scalars.setdefault(name, {})[key] = value
    values[SCALARS] = scalars
    if state.scaler.is_enabled():
        values[SCALER] = state.scaler.state_dict()
    device = state.world.device
    values[f"rng.{state.world.rank}"] = {
        # One text: the copy that stalls training visits each of 625 numbers otherwise.
        "python": json.dumps(random.getstate()),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device).cpu() if device.type == "cuda" else None,
    }
    return values


def places_for(state: TrainState, metadata: Metadata, *, with_rng: bool) -> dict[str, Any]:
    """Return what a load fills: live weights, and tensors that the optimizer has from now on."""
    saved = metadata.state_dict_metadata
    values: dict[str, Any] = _model_tensors(state.model)
    held = {key for key in saved if key.startswith("model.")}
    if held != values.keys():
        different = sorted(held ^ values.keys())
        raise ConfigError(
            f"the checkpoint holds other weights than this recipe trains: {different[0]} and "
            f"{len(different) - 1} more; use the recipe it was made with"
        )
    weights = trained_weights(state.model)
    for key, entry in saved.items():
        if key.startswith("optimizer.") and isinstance(entry, TensorStorageMetadata):
            name, _, kind = key.removeprefix("optimizer.").rpartition(".")
            weight, dtype = weights[name], entry.properties.dtype
            values[key] = state.optimizer.state[weight][kind] = (
                torch.zeros_like(weight, dtype=dtype, requires_grad=False)
                if entry.size == weight.shape
                else torch.zeros(entry.size, dtype=dtype, device=weight.device)
            )
    values[SCALARS] = None
    if state.scaler.is_enabled() and SCALER in saved:
        values[SCALER] = None
    if with_rng:
        values[f"rng.{state.world.rank}"] = None
    return values


def restore(state: TrainState, values: dict[str, Any]) -> None:
    """Put loaded values that are not live tensors where they belong."""
    for name, weight in trained_weights(state.model).items():
        kept = state.optimizer.state[weight]
        kept |= values[SCALARS].get(name, {})
        if "weight_fp32" in kept:  # runs in bf16 up to 2026-11 kept their fp32 weights here
            with torch.no_grad():
                weight.copy_(kept.pop("weight_fp32"))
            kept["step"] = torch.tensor(float(kept["step"]), device=weight.device)
    if values.get(SCALER):
        state.scaler.load_state_dict(values[SCALER])
    if (saved := values.get(f"rng.{state.world.rank}")) is not None:
        version, internal, gauss = json.loads(saved["python"])
        random.setstate((version, tuple(internal), gauss))
        torch.set_rng_state(saved["cpu"])
        if state.world.device.type == "cuda" and saved["cuda"] is not None:
            torch.cuda.set_rng_state(saved["cuda"], state.world.device)


def num_local_bytes(values: dict[str, Any]) -> int:
    """Return the bytes of this rank's slices of all tensors."""
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    return sum(getattr(each, "_local_tensor", each).nbytes for each in tensors)


def _model_tensors(model: torch.nn.Module) -> dict[str, Any]:
    """Return trained weights, and buffers that belong to the state, such as running means."""
    found = {f"model.{name}": weight.detach() for name, weight in trained_weights(model).items()}
    for name, module in model.named_modules(prefix="model"):
        for own, buffer in module.named_buffers(recurse=False):
            if own not in module._non_persistent_buffers_set:
                found[f"{name}.{own}"] = buffer.detach()
    return found


class Answer(list[WriteResult]):
    """What one rank wrote, with the digests of its files; DCP carries it to rank 0."""

    digests: Mapping[str, Digest]


class CommittingWriter(FileSystemWriter):
    """Writes into `scratch`: every rank's file is written, flushed and hashed.

    Then rank 0, which has the answers of all, writes the metadata and gives `commit` all digests.
    """

    def __init__(
        self,
        scratch: Path,
        own_files: Mapping[str, str | dict[str, torch.Tensor]],
        commit: Callable[[dict[str, Digest]], None],
    ) -> None:
        """`own_files`: texts and weights that rank 0 writes beside the slices; none elsewhere."""
        super().__init__(scratch, sync_files=True, overwrite=False)
        self._scratch, self._own_files, self._commit = scratch, own_files, commit

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Write this rank's files and return what they hold."""
        for name, content in self._own_files.items():
            path = self._scratch / name
            if isinstance(content, str):
                path.write_text(content, encoding="utf-8")
            else:
                save_file(content, path, metadata={"format": "pt"})
                path.chmod(0o644)  # safetensors writes 0600; who evaluates may be another user
            atomic.fsync_path(path)
        written = super().write_data(plan, planner)
        answer = Answer(written.value())
        names = {result.storage_data.relative_path for result in answer} | set(self._own_files)
        answer.digests = {name: digest(self._scratch / name) for name in sorted(names)}
        return written.then(lambda _: answer)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit; DCP calls it on rank 0 when every rank has written."""
        super().finish(metadata, results)
        files: dict[str, Digest] = {METADATA: digest(self._scratch / METADATA)}
        for answer in results:
            assert isinstance(answer, Answer)
            files |= answer.digests
        self._commit(files)


@dataclass(kw_only=True)
class FolderCheckpoints:
    """Checkpoints in the run's folders; every rank calls every method at the same point."""

    folder: RunFolder
    """Where the run keeps its state; `load` settles it: the run may go on in that of before."""
    world: World
    config: CheckpointConfig
    keep_last: int
    stop: StopRequest
    model_config: str = "{}"
    """Text of config.json."""
    num_failed_saves: int = 0
    resumed_loss: float | None = None
    """Loss of the step that the checkpoint was saved after, where this process loaded one."""
    rows_asked: int = 0
    """Rows of a train step by the recipe, where this process loaded a checkpoint: it keeps its."""
    last_commit_s: float | None = None
    """Unix time of the newest commit of this process; rank 0 alone knows it."""
    longest_save_s: float = 0
    damaged: set[Path] = field(default_factory=set[Path])
    """What could not be loaded: no run may count on it."""

    def __post_init__(self) -> None:
        self._began_s = time.monotonic()
        # In a group of their own, as files are written in a thread while the loop uses the others.
        self._ranks = self.world.apart(self.config.timeout_s)
        group = self._ranks.group
        self._for_dcp = {"process_group": group, "no_dist": group is None}
        self._stager: BlockingAsyncStager | None = None
        self._planners: dict[Kind, DefaultSavePlanner] = {}
        self._running: tuple[Path, Future[Any]] | None = None

    def due(self, step: int) -> bool:
        """Whether an elastic checkpoint falls on `step`, beside what the loop saves by itself."""
        every = self.config.elastic_every
        return bool(every) and step % every == 0

    def is_late(self) -> bool:
        """Whether the recipe's `every_s` have passed since rank 0 began a save, which has ended."""
        every_s = self.config.every_s
        if not every_s or not self.world.is_main:
            return False
        is_writing = self._running is not None and not self._running[1].done()
        return not is_writing and time.monotonic() - self._began_s >= every_s

    def load(self, state: TrainState) -> bool:
        """Fill `state` from the checkpoint that this run starts from; False: from nothing."""
        chosen = self._choose(state.progress.fingerprint)
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
        is_same_size = saved.world_size == self.world.world_size
        # By the recipe: a run that came from another size has other ones. Older ones do not say.
        asked = values.get("rows_asked", saved.rows_per_step)
        self.rows_asked = state.progress.rows_per_step
        if is_same_size and asked != self.rows_asked:
            raise ConfigError(
                f"{chosen.path}: a train step had {asked} rows, now {self.rows_asked}; restore "
                "train.micro_batch_size and train.gradient_accumulation, or start anew with "
                "--resume never"
            )
        self._read(chosen, state, with_rng=is_same_size)
        state.progress = replace(saved, world_size=self.world.world_size)
        self.resumed_loss = chosen.read_marker().loss
        how = "" if is_same_size else f", saved at world size {saved.world_size}"
        log(f"resumed from {chosen.path} at step {saved.step}{how}")
        if not is_same_size:
            log(f"world size {self.world.world_size}: a step keeps its {saved.rows_per_step} rows")
        before = values.get("strategy", state.strategy)  # older ones have none
        if before != state.strategy:
            log(
                f"warning: train.strategy: saved under {before}, goes on under {state.strategy}, "
                "which adds gradients up in another order: losses differ in their last digits"
            )
        return True

    def _choose(self, fingerprint: str) -> Candidate | None:
        """The candidate that is tried first and is whole, agreed on by all ranks."""
        resume = self.folder.resume
        restarted = any(self._ranks.gather(was_restarted()))
        listed = self._ranks.agree(
            lambda: self.folder.candidates(restarted=restarted, fingerprint=fingerprint)
        )
        start: Candidate | None = None
        left_out: list[Candidate] = []
        for found in listed:
            is_named = self.folder.is_explicit and found.path == Path(resume)
            reason = self._problem(found)
            if reason is not None:
                self.damaged.add(found.path)
            must_fit = self.config.same_world_size_only and found.kind is not ELASTIC
            if reason is None and must_fit and self._size(found) != self._ranks.world_size:
                if is_named:
                    raise self._refusal(found)
                left_out.append(found)
                reason = "another world size, and train.checkpoint.same_world_size_only is set"
            if reason is None:
                start = found
                break
            if is_named:
                raise ConfigError(
                    f"train.resume {resume}: {reason}; name a committed checkpoint folder"
                )
            log(f"skipped {found.path}: {reason}")
        if start is None and left_out:
            raise self._refusal(left_out[0])
        if start is None and (restarted or resume == "auto"):
            log("no committed checkpoint to resume from; starting at step 0")
        path = start and start.path
        self.folder = self._ranks.agree(lambda: self.folder.settled(path, restarted=restarted))
        return start

    def _size(self, found: Candidate) -> int:
        return self._ranks.agree(lambda: found.read_marker().world_size)

    def _refusal(self, found: Candidate) -> ConfigError:
        run = found.path.parent
        folders = (run, self.folder.elastic / run.parent.name / run.name)
        others = [c for c in self._ranks.agree(lambda: candidates(folders)) if c.kind is ELASTIC]
        good = next((each for each in others if self._problem(each) is None), None)
        use = f"resume from {good.path}" if good else "no elastic checkpoint is there: unset it"
        return ConfigError(
            f"{found.path} was saved at world size {self._size(found)}, this run has "
            f"{self._ranks.world_size}, and train.checkpoint.same_world_size_only is set; {use}"
        )

    def _problem(self, found: Candidate) -> str | None:
        """Why `found` cannot be loaded; its files are hashed by all ranks in parallel."""
        mine = found.problem(share=self._ranks.rank, of=self._ranks.world_size)
        problems = self._ranks.gather(mine)
        return next((each for each in problems if each is not None), None)

    def _read(self, chosen: Candidate, state: TrainState, *, with_rng: bool) -> None:
        places = partial(places_for, state, with_rng=with_rng)
        restore(state, read(chosen.path, places, **self._for_dcp))

    def load_best(self, state: TrainState) -> bool:
        """Put the weights of the best validation into `state`; False where they are not kept."""
        validated, places = state.progress.validated, (self.folder.chkpt, self.folder.elastic)
        run = validated.best_run or f"{self.folder.job}/{self.folder.name}"
        there = self._ranks.agree(lambda: candidates([place / run for place in places]))
        best = (each for each in there if each.step == validated.best_step)
        found = next((each for each in best if self._problem(each) is None), None)
        if found is None:
            log("the best checkpoint is not kept, or not whole: final/ is made of the last")
            return False
        self._read(found, state, with_rng=False)
        log(f"final/ is made of {found.path}, the best one")
        return True

    def save(self, state: TrainState, step: int, *, loss: float | None = None) -> None:
        """Commit `state` as of `step`, in a thread where the recipe wants that."""
        self.wait(raises=False)
        stopping = any(self._ranks.gather(bool(self.stop)))
        # Submitted with a smallest number of nodes below its largest, the job may change its size.
        may_resize = os.environ.get(MIN_NODES, "") != os.environ.get(MAX_NODES, "")
        is_elastic = self.due(step) or (stopping and may_resize)
        kind = ELASTIC if is_elastic else SHARDED
        parent = self.folder.folders(self.folder.name)[is_elastic]
        target = parent / f"{kind.prefix}-{step}"
        at(f"saving {target}")
        self._began_s = began_s = time.monotonic()
        saved, progress = Candidate(path=target, kind=kind, step=step), state.progress
        if self._ranks.agree(lambda: saved.problem() is None if target.exists() else False):
            log(f"{target} is already committed")
            return
        scratch = self._ranks.agree(lambda: _scratch_folder(target))
        values = capture(state)

        def commit(files: dict[str, Digest]) -> None:
            world_size, fingerprint = self.world.world_size, progress.fingerprint
            marker = Marker(
                step=step, world_size=world_size, fingerprint=fingerprint, loss=loss, files=files
            )
            atomic.write_text(scratch / kind.marker, json.dumps(asdict(marker), indent=1))
            if target.exists():
                # Moved out of the way: nothing here deletes a damaged one.
                aside = target.rename(target.with_name(f"damaged-{target.name}-{utc_now()}"))
                log(f"{target} is damaged; kept as {aside.name}")
            scratch.rename(target)
            atomic.fsync_path(parent)
            log(f"saved {target}")
            self.longest_save_s = max(self.longest_save_s, time.monotonic() - began_s)
            self.last_commit_s = time.time()
            self.damaged.discard(target)
            best = progress.validated.best_step if self.config.keep_best else None
            options = {"keep_last": self.keep_last, "best_step": best, "damaged": self.damaged}
            for removed in remove_old(saved, **options):
                log(f"removed {removed}: older than the last {self.keep_last}")

        writer = CommittingWriter(scratch, self._own_files(state, step, kind), commit)
        options = {"storage_writer": writer, "planner": self._planner(kind), **self._for_dcp}
        if not stopping and self.config.background and self._has_room(values):
            # DefaultStager of torch 2.11 serves one save only. A cached copy is in pinned memory.
            on_gpu = self.world.device.type == "cuda"
            self._stager = self._stager or BlockingAsyncStager(cache_staged_state_dict=on_gpu)
            future: Any = dcp_async_save(values, async_stager=self._stager, **options)
        else:
            future = Future()
            try:
                future.set_result(dcp_save(values, **options))
            except (Exception, CheckpointException) as error:
                future.set_exception(error)
        self._running = (target, future)

        def clean_up(done: Future[Any]) -> None:
            if done.exception() is not None and self.world.is_main:
                shutil.rmtree(scratch, ignore_errors=True)

        future.add_done_callback(clean_up)

    def _has_room(self, values: dict[str, Any]) -> bool:
        """Whether the host memory of every node takes the copies of its ranks, as it has before."""
        if self._stager is not None:
            return True
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        need, free = num_local_bytes(values) * ranks, available_bytes()
        fits = not any(self._ranks.gather(need > 0.8 * free))
        if not fits:
            log(
                f"a copy of the state takes {need / 2**30:.1f} GiB of host memory, "
                f"{free / 2**30:.1f} GiB are available: saves block training"
            )
        return fits

    def _own_files(
        self, state: TrainState, step: int, kind: Kind
    ) -> dict[str, str | dict[str, torch.Tensor]]:
        """Return what rank 0 writes beside the slices; every rank calls it."""
        world, progress = self.world, state.progress
        whole: dict[str, torch.Tensor] = {}
        if kind is ELASTIC:
            whole = whole_weights(trained_weights(state.model), keep=world.is_main)
        if not world.is_main:
            return {}
        asked = self.rows_asked or progress.rows_per_step
        resumed = {"step": step, "world_size": world.world_size, "rows_asked": asked}
        files: dict[str, str | dict[str, torch.Tensor]] = {
            CONFIG: self.model_config,
            STATE: json.dumps({**asdict(progress), **resumed, "strategy": state.strategy}),
        }
        if kind is ELASTIC:
            nodes = (os.environ.get(name, "") for name in (MIN_NODES, MAX_NODES))
            least, most = (int(each) if each.isdigit() else None for each in nodes)
            values = {  # why it was written, and by what job
                "format_version": 1,
                "step": step,
                "world_size": world.world_size,
                "ranks_per_node": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
                "min_nodes": least,
                "max_nodes": most,
                "strategy": state.strategy,
                "rows_per_step": progress.rows_per_step,
                "position": progress.position,
                "reason": f"{self.stop.signal_name}" if self.stop else "interval",
                "versions": {"torch": metadata.version("torch")},
                "created_at": utc_now(),
            }
            files |= {ELASTIC_METADATA: json.dumps(values, indent=1), FULL_WEIGHTS: whole}
        return files

    def wait(self, *, raises: bool = True) -> None:
        """Return when the last save is committed; where it is not, CheckpointError or a line."""
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
        try:  # how much room there is once the save that failed is removed
            room = f"{shutil.disk_usage(target.parent).free / 2**20:,.0f} MiB are free there"
        except OSError as unread:
            room = f"{target.parent} cannot be read: {unread.strerror}"
        cause = f"{_cause(error)}; {room}"
        if raises:
            raise CheckpointError(f"{target} was not saved: {cause}; free or repair the disk")
        log(f"{target} was not saved: {cause}; the run goes on from memory")

    def _planner(self, kind: Kind) -> DefaultSavePlanner:
        if kind not in self._planners:
            planner = DefaultSavePlanner(
                **AS_NAMED, dedup_save_to_lowest_rank=False, enable_plan_caching=True
            )
            # torch keeps plans by the name of the class; kinds and runs must not share one.
            planner._cached_plans_key = f"{kind.prefix}-{uuid.uuid4()}"
            self._planners[kind] = planner
        return self._planners[kind]


def _scratch_folder(target: Path) -> Path:
    """Where `target` is written first; what a save or removal left there is removed."""
    atomic.own_folder(target.parent, below=target.parents[2])
    remove_leftovers(target.parent)
    return scratch_path(target)


def _cause(error: BaseException) -> str:
    """One line of the first failure of any rank: DCP wraps them by rank."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (inner, _) = min(failures.items())
        return f"rank {rank}: {_cause(inner)}"
    full = full_text(error)
    return full or f"{type(error).__name__}: {' '.join(str(error).split())}"
