"""The loop of the transformers engine, in a thread of its own: plan, run, sample, tell.

Owns that a failure stays with its request, or with the requests of a pass that fails as a whole,
that a cancelled request frees its row in the next turn, and what a stop does to what runs.
Does not know HTTP.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, Protocol

from workloads.common.exit_codes import ExitCode, exit_code_of, reason_of
from workloads.common.log import log
from workloads.serve import sampling
from workloads.serve.answer import Answer
from workloads.serve.generation import (
    Delta,
    Failure,
    Generation,
    Load,
    Sink,
    StoppingError,
)
from workloads.serve.scheduler import Chunk, Move, Scheduler, Sequence, Turn

_STOPPED = Failure(
    message="the server stopped before the answer was whole; send the request again",
    code="server_stopping",
)


class Passes(Protocol):
    """The model as the loop sees it: runner.Runner, or a stand-in of a test."""

    def read(self, chunks: Items[Chunk]) -> Any:
        """Return the logits behind each chunk."""
        ...

    def decode(self, running: Items[Sequence], decoding: Items[Sequence]) -> Any:
        """Return the logits behind each of `decoding`."""
        ...

    def move(self, move: Move) -> None:
        """Let one row take the place of another."""
        ...


class TransformersEngine:
    """Continuous batching over one model; `start` it once, `stop` it once."""

    def __init__(
        self,
        passes: Passes,
        scheduler: Scheduler,
        tokenizer: Any,
        *,
        stop_ids: frozenset[int],
        kv_total_tokens: int,
        on_lost: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._passes = passes
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._kv_total_tokens = kv_total_tokens
        self._on_lost = on_lost
        self._answers: dict[int, Answer] = {}
        self._cancelled: set[int] = set()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._must_end = False
        self._num_returned = 0
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def submit(self, asked: Items[tuple[Generation, Sink]]) -> None:
        """Take all of them or none (QueueFullError, StoppingError)."""
        answers = [
            Answer(generation, sink, self._tokenizer, self._stop_ids) for generation, sink in asked
        ]
        with self._changed:
            if self._is_stopping:
                raise StoppingError("the server is stopping")
            self._scheduler.add([answer.sequence for answer in answers])
            self._answers |= {answer.sequence.asked.number: answer for answer in answers}
            self._changed.notify()

    def cancel(self, number: int) -> None:
        """Forget one; its row is free in the next turn."""
        with self._changed:
            if number in self._answers:
                self._cancelled.add(number)
                self._changed.notify()

    def load(self) -> Load:
        """Return how busy it is."""
        with self._changed:
            return Load(
                num_running=len(self._scheduler.running),
                num_waiting=len(self._scheduler.waiting),
                kv_used_tokens=self._scheduler.num_cached,
                kv_total_tokens=self._kv_total_tokens,
            )

    def stop(self, drain_s: float) -> int:
        """Return those who wait, let what runs end for `drain_s`; return how many did not end."""
        deadline_s = time.monotonic() + drain_s
        with self._changed:
            self._is_stopping = True
            for sequence in list(self._scheduler.waiting):
                self._fail(sequence, _STOPPED)
            self._changed.wait_for(
                lambda: not self._answers or self._must_end,
                timeout=max(0.0, deadline_s - time.monotonic()),
            )
            self._must_end = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        return self._num_returned

    def hurry(self) -> None:
        """End a stop at once: what runs is returned."""
        with self._changed:
            self._must_end = True
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._answers or self._must_end)
                if self._must_end:
                    for answer in list(self._answers.values()):
                        self._fail(answer.sequence, _STOPPED)
                        self._num_returned += 1
                    self._changed.notify_all()
                    return
                for number in self._cancelled & self._answers.keys():
                    self._forget(self._answers[number].sequence)
                self._cancelled.clear()
                turn = self._scheduler.plan()
            if turn is not None and not self._take(turn):
                return

    def _take(self, turn: Turn) -> bool:
        """Make one turn; False when the device is lost."""
        for sequences, make in (
            ([chunk.sequence for chunk in turn.chunks], lambda: self._read(turn.chunks)),
            (list(turn.decoding), lambda: self._decode(turn.decoding)),
        ):
            if not sequences:
                continue
            try:
                make()
            except Exception as error:
                if not self._survives(error, sequences):
                    return False
        return True

    def _read(self, chunks: Items[Chunk]) -> None:
        logits_BV = self._passes.read(chunks)
        whole = [row for row, chunk in enumerate(chunks) if chunk.is_last]
        logits_BV = logits_BV if len(whole) == len(chunks) else logits_BV[whole]
        read = [(chunk.sequence, chunk.end) for chunk in chunks]
        self._write([chunks[row].sequence for row in whole], logits_BV, read)

    def _decode(self, decoding: Items[Sequence]) -> None:
        # A pass before this one in the turn may have ended some and moved the others.
        decoding = [each for each in decoding if each.row >= 0]
        if not decoding:
            return
        logits_BV = self._passes.decode(self._scheduler.running, decoding)
        self._write(decoding, logits_BV, [(each, each.num_cached + 1) for each in decoding])

    def _write(
        self, sequences: Items[Sequence], logits_BV: Any, read: Items[tuple[Sequence, int]]
    ) -> None:
        """Choose a token for each of `sequences` and tell it; `read` is what the pass has read."""
        answers = [self._answers[sequence.asked.number] for sequence in sequences]
        chosen = sampling.sample(logits_BV, [answer.sampler for answer in answers])
        # Not before: a pass whose tokens were not chosen is made again from the same place.
        for sequence, num_cached in read:
            sequence.num_cached = num_cached
        for row, (answer, token) in enumerate(zip(answers, chosen, strict=True)):
            try:
                if isinstance(token, Exception):
                    raise token
                self._tell(answer, token, logits_BV[row])
            except Exception as error:
                if exit_code_of(error) is ExitCode.DEVICE:
                    raise
                self._survives(error, [answer.sequence])

    def _tell(self, answer: Answer, token: int, logits_V: Any) -> None:
        if answer.sequence.asked.number not in self._answers:
            return  # its row was lost while another's was freed
        delta = answer.write(token, logits_V)
        if delta.finish is not None:
            with self._changed:
                self._forget(answer.sequence)
        answer.sink(delta)

    def _survives(self, error: Exception, sequences: Items[Sequence]) -> bool:
        """End the requests that an error belongs to; False when no pass can follow."""
        code = exit_code_of(error)
        reason = reason_of(error) if code is ExitCode.DEVICE else f"{type(error).__name__}: {error}"
        with self._changed:
            if code is ExitCode.OUT_OF_MEMORY:
                last = max(sequences, key=lambda each: each.asked.number)
                log(f"out of memory: request {last.asked.number} is ended")
                self._fail(
                    last,
                    Failure(
                        message="the server ran out of memory with this request; try again, "
                        "or with a shorter prompt",
                        code="out_of_memory",
                    ),
                )
                _free_memory()
                return True
            traceback.print_exception(error)
            failure = Failure(message=f"the engine failed: {reason}", code="engine_error")
            if code is not ExitCode.DEVICE:
                for sequence in sequences:
                    self._fail(sequence, failure)
                return True
            self._is_stopping = self._must_end = True
            for answer in list(self._answers.values()):
                self._fail(answer.sequence, failure)
                self._num_returned += 1
            self._changed.notify_all()
        self._on_lost(error)
        return False

    def _fail(self, sequence: Sequence, failure: Failure) -> None:
        answer = self._answers.get(sequence.asked.number)
        if answer is not None:
            self._forget(sequence)
            try:
                answer.sink(Delta(failure=failure))
            except Exception as error:
                traceback.print_exception(error)

    def _forget(self, sequence: Sequence) -> None:
        """Free the row or the place in the queue; the lock is held."""
        if self._answers.pop(sequence.asked.number, None) is None:
            return
        move = self._scheduler.remove(sequence)
        if move is not None and not self._must_end:
            self._move(move)
        if not self._answers:
            self._changed.notify_all()

    def _move(self, move: Move) -> None:
        """Let the last row take a free place; where that fails, its answer ends, and only it."""
        try:
            self._passes.move(move)
        except Exception as error:
            traceback.print_exception(error)
            failure = Failure(message=f"the engine failed: {error}", code="engine_error")
            self._fail(self._scheduler.running[move.target], failure)


def _free_memory() -> None:
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
