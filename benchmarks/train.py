"""Measures the training loop against others: `make bench-train`, or python -m benchmarks.train.

One LoRA of SmolLM2-135M-Instruct in fp32 on chats of long-tailed lengths, with the same data set,
weights and order of rows for all: a step of unpacked rows is the same rows for everybody. Measured
are our loop with and without packing, a bare PyTorch loop over our packed rows, transformers'
Trainer with PEFT on rows padded to the longest of their batch and to the limit, and TRL's
SFTTrainer. Each runs in a process of its own on one thread; counted are useful tokens (that are not
padding) per second of CPU time after the first step, so that other work on the machine does not
count. The first thread of ours collates ahead: its time counts too. Writes benchmarks/train.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.machine import describe
from infra.local.state import Cache

RESULT = Path(__file__).with_name("train.json")
MODEL = "SmolLM2-135M-Instruct"
LIMIT_TOKENS = 512
"""Tokens of a packed row, and what the padded rows are padded to."""
ROWS_A_STEP = 4
SEED = 0
LORA = {"r": 16, "alpha": 32}
RATIOS = {
    # name: (ours, theirs, least ratio)
    "unpacked_vs_trainer_peft": ("ours_unpacked", "trainer_peft", 1.0),
    "unpacked_vs_trl_sft": ("ours_unpacked", "trl_sft", 1.0),
    "packed_vs_padded_trainer_peft": ("ours_packed", "trainer_peft_padded", 2.0),
    "packed_vs_bare_pytorch": ("ours_packed", "bare_pytorch", 0.97),
}


def main() -> int:
    """Measures, prints, writes; 0 when every ratio keeps its bound."""
    options = _parser().parse_args()
    if options.sample:
        print(json.dumps(SAMPLES[options.sample](options.rows, options.steps)))
        return 0
    machine = describe()
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in SAMPLES}
    for _ in range(options.runs):
        for name in SAMPLES:  # in turn, so that a drift of the machine meets all of them
            samples[name].append(_sample(name, options))
    rates = {
        name: statistics.median(each["tokens"] / each["cpu_s"] for each in found)
        for name, found in samples.items()
    }
    for name, rate in rates.items():
        print(f"{name:<32}{rate:>9.2f} useful tokens per CPU second")
    verdicts: dict[str, Any] = {}
    for name, (ours, theirs, least) in RATIOS.items():
        ratio = rates[ours] / rates[theirs]
        verdict = "PASS" if ratio >= least else "FAIL"
        verdicts[name] = {"ratio": round(ratio, 3), "least": least, "verdict": verdict}
        print(f"{name:<32}{ratio:>9.3f}  least {least:g}  {verdict}")
    if options.write:
        result = {
            "measured_at": datetime.now(UTC).date().isoformat(),
            "command": f"python -m benchmarks.train --rows {options.rows} --steps {options.steps} "
            f"--runs {options.runs}",
            "machine": machine,
            "versions": {
                name: metadata.version(name) for name in ("torch", "transformers", "peft", "trl")
            },
            "useful_tokens_per_cpu_s": {name: round(rate, 2) for name, rate in rates.items()},
            "ratios": verdicts,
            "samples": samples,
        }
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(any(each["verdict"] == "FAIL" for each in verdicts.values()))


def _sample(name: str, options: argparse.Namespace) -> dict[str, float]:
    command = [
        *(sys.executable, "-m", "benchmarks.train", "--sample", name),
        *("--rows", str(options.rows), "--steps", str(options.steps)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"benchmarks.train: {name} ended with {result.returncode}\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


class Clock:
    """CPU seconds and useful tokens after the first step."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self._tokens = 0
        self._now = (0.0, 0.0)
        self.waiting: list[int] = []
        """Useful tokens of batches that were collated ahead, in their order."""

    def step(self, tokens: int) -> None:
        """Count a step that has ended."""
        self._now = (time.process_time(), time.perf_counter())
        if self._began is None:
            self._began = self._now
        else:
            self._tokens += tokens

    def result(self) -> dict[str, float]:
        """What was counted."""
        assert self._began is not None
        return {
            "tokens": self._tokens,
            "cpu_s": self._now[0] - self._began[0],
            "wall_s": self._now[1] - self._began[1],
        }


def token_rows(count: int) -> Any:
    """`count` chats of random tokens: most short, some long, the answer is the second half."""
    from workloads.data.token_rows import IGNORED, Example, TokenRows

    draw = random.Random(0)
    rows: list[Example] = []
    for _ in range(count):
        length = min(LIMIT_TOKENS, max(16, int(draw.lognormvariate(4.4, 0.7))))
        ids = tuple(draw.randrange(3, 40_000) for _ in range(length))
        rows.append(Example(input_ids=ids, labels=(IGNORED,) * (length // 2) + ids[length // 2 :]))
    return TokenRows.of(rows)


def _model_dir() -> Path:
    return Cache.from_environ().models / MODEL


def _ours(rows: int, steps: int, *, packing: bool) -> dict[str, float]:
    trainer, _ = _trainer(rows, steps, packing=packing)
    trainer.run()
    return trainer.curve.clock.result()


class Curve:
    """Takes the place of the loss curve: the loop tells it of every step."""

    def __init__(self) -> None:
        self.clock = Clock()

    def append(self, result: Any) -> None:
        """Count a step."""
        self.clock.step(result.num_tokens)


class NoCheckpoints:
    """A run that is measured saves nothing."""

    def due(self, step: int) -> bool:
        """No step asks for one."""
        return False

    def load(self, state: Any) -> bool:
        """Nothing to resume from."""
        return False

    def save(self, state: Any, step: int, *, loss: float | None = None) -> None:
        """Save nothing."""

    def wait(self) -> None:
        """Wait for nothing."""


def _trainer(rows: int, steps: int, *, packing: bool) -> tuple[Any, Any]:
    """Our loop over the rows of the benchmark, on this process's CPU."""
    import torch

    from workloads.common.dist import World
    from workloads.data.token_rows import Writer
    from workloads.train.config import LoraConfig, TrainConfig
    from workloads.train.faults import Watchdog
    from workloads.train.loop import Trainer
    from workloads.train.optimizer import build_optimizer
    from workloads.train.order import Stream
    from workloads.train.precision import build_precision
    from workloads.train.signals import StopRequest
    from workloads.train.state import Progress, TrainState
    from workloads.train.strategy import spread_ddp
    from workloads.train.tasks.causal_lm import CausalLm

    torch.set_num_threads(1)
    config = TrainConfig(
        dataset="x",
        dtype="fp32",
        lora=LoraConfig(rank=LORA["r"], alpha=LORA["alpha"]),
        sequence_length=LIMIT_TOKENS,
        packing=packing,
        micro_batch_size=1 if packing else ROWS_A_STEP,
        max_steps=steps,
        learning_rate=1e-4,
        checkpoint_every=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        with Writer(Path(folder) / "tokens_train.parquet") as writer:
            writer.write(token_rows(rows))
        task = CausalLm(config, model_dir=_model_dir(), dataset=Path(folder))
    device = torch.device("cpu")
    world = World(rank=0, local_rank=0, world_size=1, device=device)
    model = task.build(device)
    strategy = spread_ddp(task.loss(model, device), model, world)
    optimizer = build_optimizer(strategy.trained, lr=config.learning_rate, weight_decay=0.0)
    trainer = Trainer(
        config=config,
        task=task,
        stream=Stream(packs=task.rows, seed=SEED, length=task.length),
        strategy=strategy,
        precision=build_precision(config, device),
        state=TrainState(
            model=model,
            optimizer=optimizer,
            scaler=None,
            strategy="ddp",
            world=world,
            progress=Progress(
                step=0,
                position=0,
                rows_per_step=config.micro_batch_size,
                world_size=1,
                fingerprint="",
            ),
        ),
        num_steps=steps,
        checkpoints=NoCheckpoints(),
        stop=StopRequest(),
        watchdog=Watchdog(3600, fail=_stop),
        curve=Curve(),  # type: ignore[arg-type]
        events=None,
    )
    return trainer, task


def _stop(error: Exception) -> NoReturn:
    sys.exit(f"benchmarks.train: {error}")


def _bare(rows: int, steps: int) -> dict[str, float]:
    """What is left when everything but the arithmetic is taken out of our loop."""
    import torch

    trainer, task = _trainer(rows, steps, packing=True)
    module, optimizer, clock = trainer.strategy.module, trainer.state.optimizer, Clock()
    for step in range(steps):
        batch = task.collate(trainer.stream.rows(step, 1))
        loss = module(batch) / batch.num_label_tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainer.strategy.trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.step(batch.num_tokens)
    return clock.result()


def _trainer_peft(rows: int, steps: int, *, pads_to_limit: bool) -> dict[str, float]:
    import torch
    import transformers

    torch.set_num_threads(1)
    data, clock, options = _hf_rows(rows, steps), Clock(), _hf_options(steps)
    tokenizer = transformers.AutoTokenizer.from_pretrained(_model_dir())
    collator = transformers.DataCollatorForSeq2Seq(
        tokenizer,
        padding="max_length" if pads_to_limit else True,
        max_length=LIMIT_TOKENS if pads_to_limit else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=_lora_model(),
            args=transformers.TrainingArguments(output_dir=folder, **options),
            train_dataset=data,  # type: ignore[arg-type]
            data_collator=_counting(collator, clock),
            callbacks=[_callback(clock)],
        )
        trainer.train()
    return clock.result()


def _trl(rows: int, steps: int) -> dict[str, float]:
    import datasets  # pyright: ignore[reportMissingImports]
    import torch
    import transformers
    import trl  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    clock = Clock()
    data = datasets.Dataset.from_list(_hf_rows(rows, steps))
    tokenizer = transformers.AutoTokenizer.from_pretrained(_model_dir())
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.SFTTrainer(
            model=_lora_model(),
            args=trl.SFTConfig(output_dir=folder, max_length=LIMIT_TOKENS, **_hf_options(steps)),
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[_callback(clock)],
        )
        trainer.data_collator = _counting(trainer.data_collator, clock)
        trainer.train()
    return clock.result()


def _hf_rows(rows: int, steps: int) -> list[dict[str, list[int]]]:
    """The rows of every step in the order of our stream, which the others are told to keep."""
    from workloads.train.order import Stream

    made = token_rows(rows)
    order = Stream(packs=range(rows), seed=SEED, length=lambda row: 0)
    examples = [made[index] for index in order.rows(0, steps * ROWS_A_STEP)]
    return [
        {
            "input_ids": list(row.input_ids),
            "labels": list(row.labels),
            "attention_mask": [1] * len(row.input_ids),
        }
        for row in examples
    ]


def _hf_options(steps: int) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": ROWS_A_STEP,
        "max_steps": steps,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "cosine",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": [],
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": SEED,
        "train_sampling_strategy": "sequential",
    }


def _lora_model() -> Any:
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(_model_dir(), dtype=torch.float32)
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=LORA["r"],
            lora_alpha=LORA["alpha"],
            target_modules="all-linear",
        ),
    )


def _counting(collator: Any, clock: Clock) -> Any:
    """The collator, which also notes how many useful tokens each batch has."""

    def collate(features: Any) -> Any:
        clock.waiting.append(sum(len(each["input_ids"]) for each in features))
        return collator(features)

    return collate


def _callback(clock: Clock) -> Any:
    import transformers

    class Steps(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.step(clock.waiting.pop(0))

    return Steps()


SAMPLES = {
    "ours_packed": lambda rows, steps: _ours(rows, steps, packing=True),
    "ours_unpacked": lambda rows, steps: _ours(rows, steps, packing=False),
    "bare_pytorch": _bare,
    "trainer_peft": lambda rows, steps: _trainer_peft(rows, steps, pads_to_limit=False),
    "trainer_peft_padded": lambda rows, steps: _trainer_peft(rows, steps, pads_to_limit=True),
    "trl_sft": _trl,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--rows", type=int, default=96, help="chats of the data set")
    parser.add_argument(
        "--steps", type=int, default=9, help="train steps; the first does not count"
    )
    parser.add_argument("--runs", type=int, default=3, help="samples of each, a median counts")
    parser.add_argument("--no-write", dest="write", action="store_false")
    parser.add_argument("--sample", choices=sorted(SAMPLES), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
