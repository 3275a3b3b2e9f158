"""How fast and how large runs are on this GPU: training by method and setting, and generation."""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from cost.size.memory import GIB, Sharding, training_memory
from tests.gpu.work import (
    KINDS,
    Case,
    RandomChats,
    Steps,
    hf_config,
    kind_of,
    random_model,
    trainer_of,
)
from workloads.common.hardware import peak_bf16_flops
from workloads.train.model import flops_per_token

ROWS = {"micro_batch_size": 2}
LORA = Case(name="LoRA r64 of 7B", model="Qwen2-7B", settings=ROWS)
CASES = (
    LORA,
    Case(name="QLoRA r64 of 14B", model="Qwen3-14B", settings={"method": "qlora"}),
    Case(name="all weights of 1B", model="Llama-3.2-1B", settings={"method": "full"} | ROWS),
    Case(
        name="all weights of 7B",
        model="Qwen2-7B",
        settings={"method": "full", "gradient_checkpointing": True},
    ),
)
ONE_BY_ONE = tuple(
    Case(name=f"{LORA.name}, {name}", model=LORA.model, settings=ROWS | settings)
    for name, settings in (
        ("not compiled", {"compile": False}),
        ("activations computed again", {"gradient_checkpointing": True}),
        ("dense mask", {"attention": "sdpa"}),
        # transformers 5.17 takes places of logits for one row alone.
        ("whole logits of one row", {"loss_chunk_tokens": 0, "micro_batch_size": 1}),
    )
)
"""They come last: where time runs out it is they that are missing."""
GENERATOR = Case(name="generation by 7B", model="Qwen2-7B")
STREAMS = (1, 16, 64)
WARM_STEPS = 3
"""Steps that do not count: kernels compile, once for a first length and once for all others."""


class NotRunError(Exception):
    """Why a case cannot run here."""


def training(case: Case, device: torch.device) -> dict[str, Any]:
    """Return tokens/s, share of the peak, peak memory against the plan, and the losses of a case.

    Tokens are those that are not padding, over the median step after WARM_STEPS. The share counts
    4N FLOPs a token for adapters and 6N for all weights. NotRunError where it would not fit,
    ModuleNotFoundError where a package is missing.
    """
    planned = training_memory(case.shape, case.plan, Sharding()).total
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        if planned > free:
            raise NotRunError(f"planned {planned} bytes, {free} are free")
    if case.config.has_adapters:
        import_module("peft")
    if case.config.method == "qlora":
        import_module("bitsandbytes")
    steps = Steps()
    trainer = trainer_of(case.config, RandomChats(case), device, steps)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began_s = time.perf_counter()
    trainer.run()
    first_s = trainer.ledger.ended_s[0] - began_s
    # The first step has no time of its own: it pays for compilers and warm-up.
    steps_s = [end - start for start, end in pairwise(trainer.ledger.ended_s)]
    results = list(zip(steps.results[1:], steps_s, strict=True))[WARM_STEPS - 1 :]
    tokens_per_s = statistics.median(result.num_tokens / step_s for result, step_s in results)
    flops = flops_per_token(trainer.strategy.model, method=case.config.method)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    peak = peak_bf16_flops(name)
    held = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    losses = [round(result.loss, 4) for result in steps.results]
    assert all(loss < 20 for loss in losses), losses
    return {
        "tokens_per_s": round(tokens_per_s, 1),
        "mfu_percent": round(100 * tokens_per_s * flops / peak, 2) if peak else None,
        "first_step_s": round(first_s, 2),
        "step_s": round(statistics.median(step_s for _, step_s in results), 4),
        "peak_gib": round(held / GIB, 3) if held else None,
        "planned_gib": round(planned / GIB, 3),
        "peak_over_plan": round(held / planned, 3) if held else None,
        "attention": trainer.strategy.model.config._attn_implementation,
        "losses": losses,
    }


def generation(case: Case, device: torch.device) -> dict[str, Any]:
    """Return the tokens/s of all streams together of our engine, for each of STREAMS."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from workloads.serve.engine import RowCache, Runner, TransformersEngine
    from workloads.serve.scheduler import Delta, Generation, Sampling, Scheduler

    model = random_model(case, device)
    words = models.WordLevel({str(each): each for each in range(case.shape.vocab)}, unk_token="0")
    prompt_tokens, new_tokens = _lengths(case)
    context = prompt_tokens + new_tokens
    most = max(STREAMS)
    cache = RowCache(
        model.config, num_rows=most, context_tokens=context, dtype=model.dtype, device=device
    )
    engine = TransformersEngine(
        Runner(model, cache, None),
        Scheduler(num_rows=most, max_queue=0, prefill_tokens=2048),
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)),
        stop_ids=frozenset(),
        kv_total_tokens=most * context,
    )
    engine.start()

    def generate(prompts: list[list[int]]) -> None:
        left = threading.Semaphore(0)

        def sink(delta: Delta) -> None:
            if delta.finish or delta.failure:
                left.release()

        greedy = {"ignore_eos": True, "sampling": Sampling(temperature=0)}
        asked = [Generation(prompt_ids=tuple(p), max_tokens=new_tokens, **greedy) for p in prompts]
        engine.submit([(each, sink) for each in asked])
        for _ in prompts:
            left.acquire()

    try:
        return _speeds(case, generate)
    finally:
        engine.stop(drain_s=0)


def vllm_generation(case: Case) -> dict[str, Any]:
    """Return the same of vLLM, whose weights are its own random ones."""
    import vllm  # pyright: ignore[reportMissingImports]

    prompt_tokens, new_tokens = _lengths(case)
    wanted = vllm.SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
    )
    with tempfile.TemporaryDirectory() as folder:
        config = hf_config(case.shape)
        config.architectures = [f"{KINDS[kind_of(case.shape)]}ForCausalLM"]
        config.save_pretrained(folder)
        engine = vllm.LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=prompt_tokens + new_tokens,
            max_num_seqs=max(STREAMS),
            enable_prefix_caching=False,
        )

        def generate(prompts: list[list[int]]) -> None:
            found = engine.generate([{"prompt_token_ids": each} for each in prompts], wanted)
            assert all(len(each.outputs[0].token_ids) == new_tokens for each in found)

        return _speeds(case, generate)


def _lengths(case: Case) -> tuple[int, int]:
    """Tokens of a prompt, and of an answer."""
    return (8, 4) if case.is_tiny else (256, 128)


def _speeds(case: Case, generate: Callable[[list[list[int]]], None]) -> dict[str, Any]:
    """Return the tokens/s of all streams together, for each of STREAMS."""
    prompt_tokens, new_tokens = _lengths(case)

    def tokens_per_s(streams: int) -> float:
        prompts = [[*range(number, number + prompt_tokens)] for number in range(streams)]
        began_s = time.perf_counter()
        generate(prompts)
        return streams * new_tokens / (time.perf_counter() - began_s)

    for streams in STREAMS:  # warm: kernels are chosen by the number of rows
        tokens_per_s(streams)
    return {f"tokens_per_s_at_{each}": round(tokens_per_s(each), 1) for each in STREAMS}


def free(device: torch.device) -> None:
    """Give the memory of what is gone back, so that the next case has the whole GPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    torch._dynamo.reset()
