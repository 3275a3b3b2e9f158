"""The training loop: one optimizer step per train step, the same for every method and strategy.

The gradient of a step is the sum over label tokens divided by the number of label tokens of all
ranks and micro batches, so results do not depend on how rows are dealt.
"""

from __future__ import annotations

import faulthandler
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from workloads.common.dist import World
from workloads.common.exit_codes import HungError, NonFiniteLossError, PreemptedError
from workloads.common.log import log
from workloads.recipes.train import TrainConfig
from workloads.train import measure
from workloads.train.strategy import Strategy
from workloads.train.tasks import Task

if TYPE_CHECKING:
    from workloads.train.checkpoint import FolderCheckpoints
    from workloads.train.inputs import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """What validations found; part of a checkpoint, so that a resumed run decides the same."""

    digest: str = ""
    """Hash of the rows; losses of other rows are not compared."""
    step: int = 0
    """After which the last one was; 0: none yet."""
    loss: float | None = None
    best_step: int = 0
    best_loss: float | None = None
    best_run: str = ""
    """Job and run whose checkpoint that is; empty: this one's."""
    num_worse: int = 0
    """Validations since the best."""

    def after(self, step: int, loss: float) -> Validated:
        """Return this with one more validation."""
        if self.best_loss is None or loss < self.best_loss:
            return Validated(
                digest=self.digest, step=step, loss=loss, best_step=step, best_loss=loss
            )
        return replace(self, step=step, loss=loss, num_worse=self.num_worse + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands between two train steps."""

    step: int
    """Train steps done."""
    position: int
    """Rows of the stream that all ranks together have consumed."""
    rows_per_step: int
    """Rows of one train step over all ranks; a resumption keeps it at any world size."""
    world_size: int
    fingerprint: str
    """Hash of what must not change across a resume: data, model and the settings of training."""
    validated: Validated = Validated()


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Everything that a checkpoint brings back."""

    model: Any
    """Without DDP's wrapper; plain tensors under DDP, DTensors under FSDP2."""
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    """Does nothing but in fp16 runs."""
    strategy: Literal["ddp", "fsdp"]
    world: World
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Shuffled rows: one stream, equal at any world size.

    Row k is row k mod n of the permutation of epoch k div n. The data position is the number of
    rows that all ranks together have consumed.
    """

    packs: Sequence[Any]
    seed: int
    end: int | None = None
    """Rows after which the stream ends, epochs times rows; None: endless."""
    length: Callable[[Any], int] = lambda row: row.num_tokens
    """Tokens of a row, by which the rows of one step are put together."""

    def rows(self, start: int, count: int) -> list[Any]:
        """Return `count` rows from stream position `start`, fewer at the end."""
        size = len(self.packs)
        stop = start + count if self.end is None else min(start + count, self.end)
        return [
            self.packs[_permutation(size, self.seed, position // size)[position % size]]
            for position in range(start, stop)
        ]

    def micro_batches(
        self, position: int, *, rank: int, world_size: int, micro_batch_size: int, num_rows: int
    ) -> list[list[Any]]:
        """Return this rank's micro batches of the step of `num_rows` rows from `position` on.

        All ranks together see the same rows at any world size, and each as many micro batches as
        the others: one that comes out short gets empty lists. Rows of like length share a micro
        batch, which saves padding and leaves the sum of the step's gradient as it is.
        """
        rows = sorted(self.rows(position, num_rows), key=self.length, reverse=True)
        num_micro = -(-len(rows) // (world_size * micro_batch_size))
        mine = rows[rank::world_size]
        return [
            mine[index * micro_batch_size : (index + 1) * micro_batch_size]
            for index in range(num_micro)
        ]


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return tuple(order)


def learning_rate_factor(step: int, *, config: TrainConfig, num_steps: int) -> float:
    """Return the factor on the learning rate of 0-based `step`."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    done = min(1.0, (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps))
    if config.schedule == "linear":
        return 1.0 - done
    return 0.5 * (1 + math.cos(math.pi * done))


FIRST_FACTOR = 3
"""The first step may take this many times longer: kernels compile, pages are read."""


class Watchdog:
    """Ends the process through `fail` when `beat` does not come in time; a context manager.

    A collective whose peers do not come blocks inside C++, where no exception reaches Python: only
    another thread can say so and end the rank, with the stack of every thread.
    """

    def __init__(self, timeout_s: float, *, fail: Callable[[HungError], None]) -> None:
        self._timeout_s, self._fail = timeout_s, fail
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self, doing: str, factor: float = 1) -> None:
        """Start the time anew; `doing` is what the rank begins, such as `step 12`."""
        allowed_s = self._timeout_s * factor
        self._current = doing, allowed_s, time.monotonic() + allowed_s

    def __enter__(self) -> Watchdog:
        self.beat("the first step", FIRST_FACTOR)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(min(1, self._timeout_s / 4)):
            doing, allowed_s, until_s = self._current
            if time.monotonic() > until_s:
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                message = (
                    f"{doing} did not end within {allowed_s:g} s: a collective, a read or a save "
                    "stands, see the stacks above; if steps are that long, raise "
                    "train.checkpoint.timeout_s"
                )
                self._fail(HungError(message))
                break


MIN_LOSS_SCALE = 2.0**-10
"""Below it fp16 gradients overflow at any scale: the run has diverged."""


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Everything one rank needs to train."""

    config: TrainConfig
    task: Task
    strategy: Strategy
    forward: Callable[[], torch.autocast]
    """Gives the context of a forward pass."""
    state: TrainState
    num_steps: int
    checkpoints: FolderCheckpoints
    stop: StopRequest
    curve: measure.LossCurve | None
    """On rank 0 only."""
    events: measure.Events | None
    """On rank 0 only."""
    watchdog: Watchdog
    stream: Stream = field(init=False)
    ledger: measure.Ledger = field(default_factory=measure.Ledger)
    has_lost_figures: bool = False
    """Whether the last step's figures could not be written."""

    def __post_init__(self) -> None:
        rows, epochs = self.task.rows, self.config.epochs
        self.stream = Stream(
            packs=rows,
            seed=self.config.seed,
            end=epochs * len(rows) if epochs else None,
            length=self.task.length,
        )

    def run(self) -> None:
        """Train to the last step; a stop request saves and raises PreemptedError."""
        state, config = self.state, self.config
        if state.progress.validated.digest != self.task.eval_digest:
            found = Validated(digest=self.task.eval_digest)
            state.progress = replace(state.progress, validated=found)
        # A stop leaves the validation of its step to the run that goes on.
        self._validate(done=state.progress.step >= self.num_steps or self.has_stopped_early)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows") as worker:

            def read_ahead(position: int) -> Future[list[Any]]:
                batches = self._batches(self.stream, position, state.progress.rows_per_step)
                return worker.submit(list, batches)

            waiting = read_ahead(state.progress.position)
            while state.progress.step < self.num_steps and not self.has_stopped_early:
                with self.ledger.spend("data_wait"):
                    batches = waiting.result()
                # The next step's rows are put together while this one computes.
                waiting = read_ahead(state.progress.position + state.progress.rows_per_step)
                result, stop, late = self._step(batches)
                self.ledger.add(result)
                self._report(result)
                done, is_best = state.progress.step == self.num_steps, False
                self.watchdog.beat(f"the step or save after step {state.progress.step}")
                if done or not stop:
                    is_best, stop = self._validate(done=done)
                    done = done or self.has_stopped_early
                due = self._falls(config.checkpoint_every, config.checkpoint_every_epochs)
                due = due or self.checkpoints.due(state.progress.step)
                if stop or done or is_best or due or late:
                    with self.ledger.spend("checkpoint"):
                        self.checkpoints.save(state, state.progress.step, loss=result.loss)
                        if stop or done:
                            self.checkpoints.wait()
                if stop and not done:
                    raise PreemptedError(
                        f"stopped by a signal after step {state.progress.step} of "
                        f"{self.num_steps}; saved; run the job again with --resume auto to continue"
                    )

    @property
    def has_stopped_early(self) -> bool:
        """Whether validations have found nothing better for as long as the recipe has patience."""
        patience = self.config.eval and self.config.eval.patience
        return patience is not None and self.state.progress.validated.num_worse >= patience

    def _falls(self, every: int | None, every_epochs: int | None) -> bool:
        """Whether an interval, in epochs where these are given, ends with the last step."""
        now = self.state.progress
        if every_epochs is None:
            return bool(every) and now.step % every == 0
        rows = every_epochs * len(self.stream.packs)
        return now.position // rows > (now.position - now.rows_per_step) // rows

    def _validate(self, *, done: bool) -> tuple[bool, bool]:
        """Validate where that is due; whether the weights are the best, and whether to stop."""
        progress, config = self.state.progress, self.config.eval
        is_due = config and (done or self._falls(config.every, config.every_epochs))
        if not is_due or progress.validated.step == progress.step:
            return False, False
        with self.ledger.spend("eval"):
            loss = self._eval(stops=not done)
        if loss is None:
            return False, True
        validated = progress.validated.after(progress.step, loss)
        self.state.progress = replace(progress, validated=validated)
        self._note({"step": progress.step - 1, "eval_loss": loss}, {"eval/loss": loss})
        self.ledger.eval_loss = loss
        is_best = validated.best_step == progress.step
        log(
            f"step {progress.step}/{self.num_steps} eval loss {loss:.4f}"
            + ("" if is_best else f", best {validated.best_loss:.4f} at {validated.best_step}")
        )
        return is_best and self.config.checkpoint.keep_best, False

    @torch.no_grad()
    def _eval(self, *, stops: bool) -> float | None:
        """Return the mean loss per label token of the held-out rows over all ranks, in nats.

        None where a signal `stops` it.
        """
        world, module, rows = self.state.world, self.strategy.module, self.task.eval_rows
        stream = Stream(packs=rows, seed=0, end=len(rows), length=self.task.length)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        num_labels = 0.0
        module.eval()
        try:
            for batch in self._batches(stream, 0, len(rows)):
                self.watchdog.beat(f"validation after step {self.state.progress.step}")
                if stops and world.sum([float(bool(self.stop))])[0]:
                    return None
                num_labels += batch.num_label_tokens
                with self.forward():
                    total += module(batch.to(world.device))
        finally:
            self.strategy.train()
        loss_sum, num_labels = world.sum([total.item(), num_labels])
        self._check_finite(f"held-out rows after step {self.state.progress.step}", loss_sum, 0.0)
        return loss_sum / num_labels

    def _batches(self, stream: Stream, position: int, num_rows: int) -> Iterator[Any]:
        """Yield this rank's micro batches; nothing is read before the first is asked for."""
        world, size = self.state.world, self.config.micro_batch_size
        ranks = {"rank": world.rank, "world_size": world.world_size}
        dealt = stream.micro_batches(position, num_rows=num_rows, micro_batch_size=size, **ranks)
        yield from map(self.task.collate, dealt)

    def _step(self, batches: list[Any]) -> tuple[measure.StepResult, bool, bool]:
        """Train one step; its figures, whether a rank was told to stop, whether a save is late."""
        config, world, state = self.config, self.state.world, self.state
        num_labels, num_tokens, num_positions, num_stops, num_late = world.sum(
            [
                float(sum(batch.num_label_tokens for batch in batches)),
                float(sum(batch.num_tokens for batch in batches)),
                float(sum(self.task.num_positions(batch) for batch in batches)),
                float(bool(self.stop)),
                float(self.checkpoints.is_late()),
            ]
        )
        # DDP and FSDP2 average over ranks; the factor turns that into the sum over ranks.
        scale = world.world_size / max(1.0, num_labels)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        for index, batch in enumerate(batches):
            with self.strategy.accumulate(last=index == len(batches) - 1):
                with self.forward():
                    loss = self.strategy.module(batch.to(world.device))
                state.scaler.scale(loss * scale).backward()
            total += loss.detach()
        state.scaler.unscale_(state.optimizer)  # before they are clipped
        norm = self.strategy.clip(config.max_grad_norm)
        # Both at once: a GPU is waited for here, and for the mask of rows that share a micro batch.
        loss, grad_norm = torch.stack((total, norm.to(total))).tolist()
        (loss_sum,) = world.sum([loss])
        step = state.progress.step
        self._check_finite(f"step {step + 1}, gradient norm {grad_norm}", loss_sum, grad_norm)
        rate = config.learning_rate * learning_rate_factor(
            step, config=config, num_steps=self.num_steps
        )
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        state.scaler.step(state.optimizer)
        state.scaler.update()
        self.strategy.zero_gradients()
        position = state.progress.position + state.progress.rows_per_step
        if self.stream.end is not None:  # the last step may be short, and the run be prolonged
            position = min(position, self.stream.end)
        state.progress = replace(state.progress, step=step + 1, position=position)
        result = measure.StepResult(
            step=step,
            loss=loss_sum / max(1.0, num_labels),
            # fp16 gradients overflow now and then; the step is left out and the scale halved.
            grad_norm=grad_norm if math.isfinite(grad_norm) else 0.0,
            learning_rate=rate,
            num_tokens=int(num_tokens),
            num_positions=int(num_positions),
            num_label_tokens=int(num_labels),
        )
        return result, num_stops > 0, num_late > 0

    def _check_finite(self, where: str, loss_sum: float, grad_norm: float) -> None:
        scaler = self.state.scaler
        bearable = scaler.is_enabled() and scaler.get_scale() > MIN_LOSS_SCALE
        if math.isfinite(loss_sum) and (math.isfinite(grad_norm) or bearable):
            return
        raise NonFiniteLossError(
            f"{where}: loss {loss_sum}; lower train.learning_rate ({self.config.learning_rate}) "
            "or raise train.warmup_steps"
        )

    def _report(self, result: measure.StepResult) -> None:
        scalars = {
            "train/loss": result.loss,
            "train/grad_norm": result.grad_norm,
            "train/learning_rate": result.learning_rate,
            "train/useful_tokens": float(result.num_tokens),
        }
        self._note(asdict(result), scalars)
        log(
            f"step {result.step + 1}/{self.num_steps} loss {result.loss:.4f} "
            f"grad norm {result.grad_norm:.3f} lr {result.learning_rate:.2e} "
            f"tokens {result.num_tokens}"
        )

    def _note(self, figures: dict[str, Any], scalars: dict[str, float]) -> None:
        """Write figures of a step; a disk that is full costs their lines, not the run."""
        number = figures["step"] + 1
        try:
            if self.curve:
                self.curve.append(figures)
            if self.events:
                self.events.add(number, scalars)
        except OSError as error:
            if not self.has_lost_figures:
                log(f"figures of step {number} are not written: {error}; the run goes on")
            self.has_lost_figures = True
        else:
            self.has_lost_figures = False
