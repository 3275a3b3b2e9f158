"""The transformers engine, in a thread of its own: plan, run, sample, tell; and how it is loaded.

A failure stays with its request, or with the requests of a pass that fails as a whole. A cancelled
request frees its row in the next turn. Shapes: B rows of the batch, R rows of the cache, T tokens
of the pass, S tokens seen, H key-value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import gc
import math
import threading
import time
import traceback
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from workloads.common.exit_codes import ConfigError, DataError, ExitCode, exit_code_of, reason_of
from workloads.common.log import log
from workloads.common.models import load_model, load_tokenizer, torch_dtype
from workloads.common.places import WEIGHTS, Places, stage
from workloads.data.chat_template import check_tokenizer
from workloads.evaluate.generate import batches, stop_token_ids
from workloads.recipes.serve import Limits, ServeConfig
from workloads.serve import sampling
from workloads.serve.sampling import Grammars, RowSampler
from workloads.serve.scheduler import (
    ApiError,
    Chunk,
    Delta,
    FinishReason,
    Generation,
    Load,
    Scheduler,
    Sequence,
    Sink,
    TokenLogprob,
)
from workloads.serve.text import TextStream
from workloads.serve.weights import Weights, forget_cached

_ALIGNMENT = 8
"""Masks of CUDA's memory-efficient attention want lengths in steps of 8."""


class _Layer(CacheLayerMixin):
    """One layer's block; `update` is what attention calls."""

    def __init__(self, shape: tuple[int, ...], cache: RowCache, **options: Any) -> None:
        super().__init__()
        # Zeros, as uninitialised memory can be NaN, which a masked position would still spread.
        self.keys = torch.zeros(shape, **options)
        self.values = torch.zeros(shape, **options)
        self.is_initialized = True
        self._cache = cache

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Nothing: the block is there from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens and return all that the pass may see: R x H x S x D."""
        cache, keys, values = self._cache, self.keys, self.values
        assert keys is not None
        assert values is not None
        if cache.ones_B is not None:
            rows_B, positions_B = cache.ones_B
            keys[rows_B, :, positions_B] = key_states[:, :, 0]
            values[rows_B, :, positions_B] = value_states[:, :, 0]
        else:
            for index, (row, start, count) in enumerate(cache.writes):
                keys[row, :, start : start + count] = key_states[index, :, :count]
                values[row, :, start : start + count] = value_states[index, :, :count]
        return keys[cache.rows, :, : cache.num_seen], values[cache.rows, :, : cache.num_seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return what a mask must cover: tokens seen, from the first."""
        return self._cache.num_seen, 0

    def get_seq_length(self) -> int:
        """Return how many tokens the pass sees."""
        return self._cache.num_seen

    def get_max_length(self) -> int:
        """Return the length of a row."""
        assert self.keys is not None
        return self.keys.shape[2]


class RowCache(Cache):
    """The cache of one engine; `aim` it before each pass.

    A token's keys lie at row r, position p, in one block a layer that is taken once at the start; a
    pass sees rows side by side as views.
    """

    rows: slice | torch.Tensor = slice(0, 0)
    """Of the next pass."""
    writes: Items[tuple[int, int, int]] = ()
    """Its tokens: row, first position and number, by row of the batch."""
    ones_B: tuple[torch.Tensor, torch.Tensor] | None = None
    """Rows and positions, where it is one token each."""
    num_seen = 0
    """Tokens of each row that it sees."""

    def __init__(
        self,
        config: Any,
        *,
        num_rows: int,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = -(-context_tokens // _ALIGNMENT) * _ALIGNMENT
        self._device = device
        num_heads, head_size = _heads(config)
        shape = (num_rows, num_heads, self.length, head_size)
        self._blocks = [
            _Layer(shape, self, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        super().__init__(layers=[*self._blocks])

    def aim(self, writes: Items[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Aim at chunks (row, start, count); return positions B x T and the mask B x 1 x T x S.

        Chunks that all begin their prompts need no mask: they attend causally among themselves, the
        padding lies behind them, and kernels do half the work without one.
        """
        longest = max(count for _, _, count in writes)
        rows = [row for row, _, _ in writes]
        beside = range(rows[0], rows[0] + len(rows))
        rows_B = torch.tensor(rows, device=self._device)
        self.rows = slice(beside.start, beside.stop) if rows == [*beside] else rows_B
        self.writes = writes
        is_first = all(start == 0 for _, start, _ in writes)
        seen = self._rounded(max(at + count for _, at, count in writes))
        self.num_seen = longest if is_first else seen
        starts_B = torch.tensor([start for _, start, _ in writes], device=self._device)
        self.ones_B = (rows_B, starts_B) if longest == 1 else None
        offsets_T = torch.arange(longest, device=self._device)
        # The padding behind a short chunk is computed and thrown away; its position must exist.
        positions_BT = (starts_B[:, None] + offsets_T).clamp(max=self.length - 1)
        if is_first:
            return positions_BT, None
        seen_S = torch.arange(seen, device=self._device)
        return positions_BT, (seen_S <= positions_BT[:, :, None])[:, None]

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one row over another."""
        for block in self._blocks:
            for tensor in (block.keys, block.values):
                assert tensor is not None
                tensor[target, :, :num_tokens] = tensor[source, :, :num_tokens]

    def _rounded(self, num_tokens: int) -> int:
        return min(-(-num_tokens // _ALIGNMENT) * _ALIGNMENT, self.length)


def bytes_per_row(config: Any, *, context_tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of one row."""
    per_token = 2 * config.num_hidden_layers * math.prod(_heads(config))
    return per_token * context_tokens * dtype.itemsize


def check_model(config: Any, *, context_tokens: int) -> None:
    """Refuse a model whose layers or positions do not reach over the whole context."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    if kinds == {"sliding_attention"} and window and context_tokens <= window:
        kinds = set()
    if kinds:
        raise ConfigError(
            f"serve.engine: transformers serves layers that see the whole context, and this model "
            f"has {', '.join(sorted(kinds))}; set it to vllm"
            + (f", or lower serve.limits.context_tokens to {window}" if window else "")
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest and context_tokens > longest:
        raise ConfigError(
            f"serve.limits.context_tokens: {context_tokens}, but the model has {longest} positions "
            f"(max_position_embeddings); lower it to {longest}"
        )


def _heads(config: Any) -> tuple[int, int]:
    """Return how many heads have keys and values, and the size of one."""
    all_heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // all_heads
    return getattr(config, "num_key_value_heads", None) or all_heads, size


_ADAPTER, _BASE = "default", "__base__"


class AdapterRows:
    """Says for the next forward pass which rows the adapter answers.

    Base and tuned rows share a batch: each adapted layer changes the tuned rows only. peft's own
    way hooks every layer anew for each forward pass; here the hooks stay.
    """

    def __init__(self, model: Any) -> None:
        from peft.tuners.lora import LoraLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        self._names: list[str] | None = None
        for module in model.modules():
            if isinstance(module, (LoraLayer, AuxiliaryTrainingWrapper)):
                layer: Any = module
                layer.register_forward_pre_hook(self._tell, with_kwargs=True)

    def choose(self, is_tuned: Items[bool]) -> None:
        """Set the rows of the next pass."""
        # All rows tuned: the plain path, without splitting the batch.
        names = [_ADAPTER if each else _BASE for each in is_tuned]
        self._names = None if all(is_tuned) else names

    def _tell(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._names is None:
            return args, kwargs
        return args, {**kwargs, "adapter_names": self._names}


def attach_adapter(model: Any, adapter_dir: Path) -> tuple[Any, AdapterRows]:
    """Return `model` with the adapter beside its weights, and the choice of rows."""
    import peft

    try:
        config = peft.PeftConfig.from_pretrained(str(adapter_dir))
        if not isinstance(config, peft.LoraConfig):
            raise DataError(
                f"{adapter_dir}: {config.peft_type} cannot answer beside its base in one batch; "
                "merge it (train.export merged) and serve that with --merged"
            )
        tuned = peft.PeftModel.from_pretrained(model, adapter_dir, is_trainable=False).eval()
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{adapter_dir}: adapter cannot be loaded: {error}") from error
    # The wrapped model without peft's wrapper: its own forward, its adapted layers inside.
    return tuned.get_base_model(), AdapterRows(tuned)


class Runner:
    """A model with its cache."""

    def __init__(self, model: Any, cache: RowCache, adapter_rows: AdapterRows | None) -> None:
        self._model = model
        self._cache = cache
        self._adapter_rows = adapter_rows

    @torch.inference_mode()
    def read(self, chunks: Items[Chunk]) -> torch.Tensor:
        """Read the chunks; return the logits behind each one's last token, B x V."""
        lengths = [each.end - each.start for each in chunks]
        groups = batches(lengths, batch_size=len(chunks))
        parts = [self._pass([chunks[index] for index in group]) for group in groups]
        if len(parts) == 1 and groups[0] == list(range(len(chunks))):
            return parts[0]
        order = torch.tensor([index for group in groups for index in group])
        return torch.cat(parts)[order.argsort().to(parts[0].device)]

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Let one row take the place of another."""
        self._cache.move(source, target, num_tokens)

    def _pass(self, chunks: Items[Chunk]) -> torch.Tensor:
        writes = [(each.sequence.row, each.start, each.end - each.start) for each in chunks]
        positions_BT, mask = self._cache.aim(writes)
        ids = [each.ids for each in chunks]
        longest = max(map(len, ids))
        padded = [[*each, *[0] * (longest - len(each))] for each in ids]
        ids_BT = torch.tensor(padded, device=positions_BT.device)
        if self._adapter_rows is not None:
            self._adapter_rows.choose([each.sequence.asked.is_tuned for each in chunks])
        # Chunks of different lengths end at different places; the head gets those places only.
        ends = [len(each) - 1 for each in ids]
        places = sorted({*ends})
        has_one = len(places) == 1
        logits = self._model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=positions_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 if has_one else torch.tensor(places, device=ids_BT.device),
        ).logits
        if has_one:  # as in decoding, where each copy of a small tensor to the GPU counts
            return logits[:, -1].float()
        return logits[[*range(len(ends))], [places.index(each) for each in ends]].float()


class Answer:
    """A sequence with who is told of its tokens."""

    def __init__(
        self, asked: Generation, sink: Sink, tokenizer: Any, stop_ids: frozenset[int]
    ) -> None:
        self.sequence = Sequence(asked=asked)
        self.sink = sink
        wanted = asked.sampling
        self._stop_ids = wanted.stop_token_ids + (() if asked.ignore_eos else tuple(stop_ids))
        self.sampler = RowSampler(wanted, asked.constraint, asked.prompt_ids, self._stop_ids)
        self._text = TextStream(tokenizer, asked.stop, min_tokens=wanted.min_tokens)
        self._tokenizer = tokenizer

    def write(self, token: int, logits_V: Any) -> Delta:
        """Add the token that was chosen from `logits_V`; return what the client gets of it."""
        sequence, asked = self.sequence, self.sequence.asked
        sequence.output_ids.append(token)
        self.sampler.wrote(token)
        finish: FinishReason | None = None
        text, entries = "", ()
        if token in self._stop_ids:
            finish = "stop"
        else:
            text = self._text.push(token)
            if asked.num_logprobs is not None:
                entries = (self._logprob(logits_V, token, asked.num_logprobs),)
            if self._text.has_stopped:
                finish = "stop"
            elif len(sequence.output_ids) >= asked.max_tokens:
                finish = "length"
        if finish is not None:
            text += self._text.finish()
        return Delta(text=text, num_tokens=1, logprobs=entries, finish=finish)

    def _logprob(self, logits_V: Any, token: int, num_top: int) -> TokenLogprob:
        value, top = sampling.logprobs(logits_V, token, num_top)
        decode = self._tokenizer.decode
        return TokenLogprob(
            token=decode([token]),
            logprob=value,
            top=tuple((decode([index]), each) for index, each in top),
        )


_STOPPED = ApiError(
    status=503,
    message="the server stopped before the answer was whole; send the request again",
    code="server_stopping",
)


def _failed(reason: object) -> ApiError:
    return ApiError(status=500, message=f"the engine failed: {reason}", code="engine_error")


@dataclass(eq=False)
class TransformersEngine:
    """Continuous batching over one model; `start` it once, `stop` it once."""

    _passes: Runner
    _scheduler: Scheduler
    _tokenizer: Any
    _: KW_ONLY
    stop_ids: frozenset[int]
    kv_total_tokens: int
    on_lost: Callable[[BaseException], None] = lambda error: None

    def __post_init__(self) -> None:
        self._answers: dict[int, Answer] = {}
        self._cancelled: set[int] = set()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._must_end = False
        self._num_returned = 0
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, asked: Items[tuple[Generation, Sink]]) -> None:
        """Take all of them or none (ApiError)."""
        answers = [
            Answer(generation, sink, self._tokenizer, self.stop_ids) for generation, sink in asked
        ]
        with self._changed:
            if self._is_stopping:
                raise ApiError(status=503, message="the server is stopping", code="server_stopping")
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
        with self._changed:
            return Load(
                num_running=len(self._scheduler.running),
                num_waiting=len(self._scheduler.waiting),
                kv_used_tokens=self._scheduler.num_cached,
                kv_total_tokens=self.kv_total_tokens,
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
                reading = self._scheduler.reading()
            # Not at once: what a pass reads may end answers, whose rows others take.
            if not self._take(reading) or not self._take(self._scheduler.decoding()):
                return

    def _take(self, chunks: Items[Chunk]) -> bool:
        """Make one pass, if there is anything to read; False when the device is lost."""
        try:
            if chunks:
                self._read(chunks)
        except Exception as error:
            return self._survives(error, [chunk.sequence for chunk in chunks])
        return True

    def _read(self, chunks: Items[Chunk]) -> None:
        """Read the chunks, choose a token behind each that ends what there is, and tell it."""
        logits_BV = self._passes.read(chunks)
        whole = [row for row, chunk in enumerate(chunks) if chunk.is_last]
        logits_BV = logits_BV if len(whole) == len(chunks) else logits_BV[whole]
        answers = [self._answers[chunks[row].sequence.asked.number] for row in whole]
        chosen = sampling.sample(logits_BV, [answer.sampler for answer in answers])
        # Not before: a pass whose tokens were not chosen is made again from the same place.
        for chunk in chunks:
            chunk.sequence.num_cached = chunk.end
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
                    ApiError(
                        status=503,
                        message="the server ran out of memory with this request; try again, "
                        "or with a shorter prompt",
                        code="out_of_memory",
                    ),
                )
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                return True
            traceback.print_exception(error)
            failure = _failed(reason)
            if code is not ExitCode.DEVICE:
                for sequence in sequences:
                    self._fail(sequence, failure)
                return True
            self._is_stopping = self._must_end = True
            for answer in list(self._answers.values()):
                self._fail(answer.sequence, failure)
                self._num_returned += 1
            self._changed.notify_all()
        self.on_lost(error)
        return False

    def _fail(self, sequence: Sequence, failure: ApiError) -> None:
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
        moved = self._scheduler.remove(sequence)
        if moved is not None and not self._must_end:
            try:
                self._passes.move(len(self._scheduler.running), moved.row, moved.num_cached)
            except Exception as error:  # the answer of the row that moves ends, and only it
                traceback.print_exception(error)
                self._fail(moved, _failed(error))
        if not self._answers:
            self._changed.notify_all()


_RESERVE = 0.1
"""Share of the free device memory left to the passes themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A ready engine."""

    engine: TransformersEngine
    tokenizer: Any
    grammars: Grammars
    metrics: dict[str, float | int]
    device: torch.device


def load(config: ServeConfig, weights: Weights, places: Places) -> Loaded:
    """Return the engine, not yet started."""
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(weights.tokenizer_dir)
    check_tokenizer(tokenizer)
    metrics: dict[str, float | int] = {}
    if config.compare_cold_start:
        forget_cached(weights.model_dir)
        metrics["load_unstaged_s"] = _model(config, weights.model_dir, device)[1]
        gc.collect()
        forget_cached(weights.model_dir)
    folder = weights.model_dir
    metrics["is_staged"] = 0
    if config.stage == "auto":
        staged = stage(folder, places, WEIGHTS)
        log(staged.text)
        folder = staged.path
        metrics |= staged.metrics
    model, metrics["load_s"] = _model(config, folder, device)
    if config.compare_cold_start and metrics["is_staged"]:
        log(
            f"weights are read in {metrics['load_s']:.2f} s from the RAM disk (after a copy of "
            f"{metrics['stage_copy_s']:.2f} s) and in {metrics['load_unstaged_s']:.2f} s without it"
        )
    check_model(model.config, context_tokens=config.limits.context_tokens)
    stop_ids = stop_token_ids(model, tokenizer)
    rows = None
    if weights.adapter_dir is not None:
        model, rows = attach_adapter(model, weights.adapter_dir)
    dtype = torch_dtype(config.dtype)
    if device.type == "cuda":
        _check_room(model.config, config.limits, dtype, device)
    cache = RowCache(
        model.config,
        num_rows=config.limits.max_concurrency,
        context_tokens=config.limits.context_tokens,
        dtype=dtype,
        device=device,
    )
    engine = TransformersEngine(
        Runner(model, cache, rows),
        Scheduler(
            num_rows=config.limits.max_concurrency,
            max_queue=config.limits.max_queue,
            prefill_tokens=config.prefill_tokens,
        ),
        tokenizer,
        stop_ids=stop_ids,
        kv_total_tokens=config.limits.max_concurrency * config.limits.context_tokens,
    )
    return Loaded(
        engine=engine,
        tokenizer=tokenizer,
        grammars=Grammars(tokenizer, stop_ids),
        metrics=metrics,
        device=device,
    )


def _model(config: ServeConfig, folder: Path, device: torch.device) -> tuple[Any, float]:
    """Return the model and the seconds that its loading took."""
    began = time.monotonic()
    model = load_model(folder, dtype=torch_dtype(config.dtype), device=device)
    return model, time.monotonic() - began


def _check_room(
    model_config: Any, limits: Limits, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse a cache that does not fit beside the weights, with the rows that would."""
    row = bytes_per_row(model_config, context_tokens=limits.context_tokens, dtype=dtype)
    free, total = torch.cuda.mem_get_info(device)
    room = free - _RESERVE * total
    if row * limits.max_concurrency > room:
        fits = max(0, int(room // row))
        raise ConfigError(
            f"serve.limits: {limits.max_concurrency} rows of {limits.context_tokens} tokens are "
            f"{row * limits.max_concurrency / 2**30:.1f} GiB of KV cache, {room / 2**30:.1f} GiB "
            f"are free beside the weights; {fits} rows fit: lower max_concurrency or context_tokens"
        )
