"""The fine-tuning job: LoRA or full, on the ranks that torchrun started.

Usage: torchrun --nproc-per-node=2 -m workloads.train --recipe smollm2_135m_lora_2xcpu
       [--set train.max_steps=8] [--resume auto]
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from workloads.common import atomic, hardware
from workloads.common.dist import World, environment_rank, world
from workloads.common.exit_codes import DataError
from workloads.common.job import Job, end, run_job, section_of
from workloads.common.log import log
from workloads.data.chat_template import IGNORED
from workloads.data.packing import Pack, pack, unused_percent
from workloads.data.tokenize import read_parquet
from workloads.train.config import TrainConfig
from workloads.train.plan import checked_plan, choose_strategy, read_plan

# Settings that may differ between a run and its resumption.
RESUMABLE = (
    "checkpoint_every",
    "keep_last",
    "resume",
    "cpu_threads",
    "gradient_checkpointing",
    "strategy",
)


def load_packs(config: TrainConfig, dataset: Path) -> tuple[list[Pack], int]:
    """Return the packed rows of the training split, and how many examples were dropped."""
    examples = read_parquet(dataset / "tokens_train.parquet")
    kept = [row for row in examples if len(row.input_ids) <= config.sequence_length]
    num_dropped = len(examples) - len(kept)
    if num_dropped and config.overlong == "refuse":
        raise DataError(
            f"{dataset}: {num_dropped} of {len(examples)} examples are longer than "
            f"train.sequence_length {config.sequence_length}; raise it, or set train.overlong=drop"
        )
    if not any(label != IGNORED for row in kept for label in row.labels[1:]):
        raise DataError(f"{dataset}: no token to learn in {len(kept)} training examples")
    return pack(kept, sequence_length=config.sequence_length), num_dropped


def fingerprint(config: TrainConfig, model_dir: Path, packs: list[Pack], num_steps: int) -> str:
    """Return the hash of everything that a resumed run must share with its checkpoint."""
    values = {k: v for k, v in asdict(config).items() if k not in RESUMABLE}
    digest = hashlib.sha256(json.dumps([values, model_dir.name, num_steps]).encode())
    for packed in packs:
        for example in packed.examples:
            digest.update(repr((example.input_ids, example.labels)).encode())
    return digest.hexdigest()


def num_train_steps(config: TrainConfig, *, num_packs: int, world_size: int) -> int:
    """Return the train steps of the run; a last partial step of the epochs counts as one."""
    if config.max_steps is not None:
        return config.max_steps
    assert config.epochs is not None
    rows_per_step = config.micro_batch_size * config.gradient_accumulation * world_size
    return -(-config.epochs * num_packs // rows_per_step)


def main(job: Job) -> None:
    """Train, write the final adapter and point `latest` at it."""
    config = job.recipe.train
    if config is None:
        raise section_of(job.recipe, "train")
    # Paths first: a missing one is told before torch is imported and a GPU is taken.
    model_dir = job.places.model_dir(job.recipe.model)
    dataset = job.places.data_path(config.dataset)
    chkpt = job.places.path("chkpt")
    rank, _, world_size = environment_rank()
    plan = checked_plan(read_plan(), model=job.recipe.model, config=config, world_size=world_size)
    strategy = choose_strategy(plan, config)
    if plan is not None and rank == 0:
        # Beside the record, so that `soperator pull` brings what was expected with what came.
        atomic.write_text(job.results_dir / "plan.json", plan.path.read_text(encoding="utf-8"))
        job.record.artifacts["plan"] = str(job.results_dir / "plan.json")
    packs, num_dropped = load_packs(config, dataset)
    with world(cpu_threads=config.cpu_threads) as here:
        job.record.hardware = hardware.detect(hardware.device_name())
        _train(job, config, here, model_dir, chkpt, packs, num_dropped, strategy)
        if plan is not None and here.device.type == "cuda":
            job.record.metrics["planned_gpu_memory_gib"] = plan.memory_gib_per_rank["total"]


def _train(
    job: Job,
    config: TrainConfig,
    here: World,
    model_dir: Path,
    chkpt: Path,
    packs: list[Pack],
    num_dropped: int,
    strategy: str,
) -> None:
    import torch

    from workloads.common.models import load_tokenizer
    from workloads.train import checkpoint, run_folder
    from workloads.train.loop import Trainer
    from workloads.train.metrics import LossCurve
    from workloads.train.model import build_model, flops_per_token, num_parameters
    from workloads.train.optimizer import AdamW
    from workloads.train.order import Stream
    from workloads.train.signals import stop_request

    num_steps = num_train_steps(config, num_packs=len(packs), world_size=here.world_size)
    unused = unused_percent(packs, sequence_length=config.sequence_length)
    tokenizer = load_tokenizer(model_dir)
    model = build_model(model_dir, config, device=here.device)
    num_all, num_trained = num_parameters(model)
    log(
        f"{model_dir.name}: {num_all / 1e6:.1f}M parameters, {num_trained / 1e6:.2f}M trained "
        f"({config.method}, {config.dtype}); {strategy}, world size {here.world_size} on "
        f"{here.device.type}; "
        f"{len(packs)} packed rows of {config.sequence_length}, {100 - unused:.1f} % filled; "
        f"{num_steps} train steps"
    )
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = AdamW(trained, lr=config.learning_rate, weight_decay=config.weight_decay)
    torch.manual_seed(config.seed + here.rank)

    folder = _agree(here, lambda: run_folder.choose(chkpt, resume=config.resume))
    mark = fingerprint(config, model_dir, packs, num_steps)
    progress = checkpoint.Progress(step=0, position=0, world_size=here.world_size, fingerprint=mark)
    if folder.resume_from is not None:
        loaded = checkpoint.load(
            folder.resume_from, model=model, optimizer=optimizer, world=here, fingerprint=mark
        )
        progress = checkpoint.Progress(**{**asdict(loaded), "world_size": here.world_size})
        log(f"resumed from {folder.resume_from} at step {progress.step}")
    curve_path = job.results_dir / "loss_curve.jsonl"
    with stop_request() as stop:
        trainer = Trainer(
            config=config,
            world=here,
            model=model,
            stream=Stream(packs=packs, seed=config.seed),
            pad_id=tokenizer.pad_token_id,
            num_steps=num_steps,
            folder=folder,
            progress=progress,
            optimizer=optimizer,
            curve=LossCurve(curve_path, first_step=progress.step) if here.is_main else None,
            stop=stop,
        )
        throughput = trainer.run()
    if here.is_main:
        write_final(folder, model, tokenizer)
        run_folder.publish(folder)
        log(f"final {'adapter' if config.method == 'lora' else 'model'} in {folder.final}")
    here.barrier()

    job.record.engine = "transformers"
    job.record.metrics |= {
        "num_parameters": num_all,
        "num_trained_parameters": num_trained,
        "num_train_steps": num_steps,
        "num_packed_rows": len(packs),
        "num_dropped_examples": num_dropped,
        **throughput.metrics(
            world_size=here.world_size,
            flops_per_token=flops_per_token(model, method=config.method),
            device_name=job.record.hardware.device if job.record.hardware else "",
        ),
    }
    if throughput.losses:
        job.record.metrics |= {
            "first_loss": throughput.losses[0],
            "last_loss": throughput.losses[-1],
        }
    if throughput.stalls_s:
        job.record.metrics["checkpoint_stall_s"] = fmean(throughput.stalls_s)
    if here.device.type == "cuda":
        job.record.metrics["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    job.record.artifacts |= {
        "adapter_dir" if config.method == "lora" else "model_dir": str(folder.final),
        "checkpoint_dir": str(folder.path),
        "loss_curve": str(curve_path),
    }


def _agree(here: World, choose: Any) -> Any:
    """Return rank 0's choice on all ranks; its error is raised on all of them."""
    outcome: Any = None
    if here.is_main:
        try:
            outcome = choose()
        except Exception as error:
            outcome = error
    outcome = here.broadcast(outcome)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def write_final(folder: Any, model: Any, tokenizer: Any) -> None:
    """Write the adapter (LoRA) or the whole model (full) with its tokenizer, atomically."""
    with atomic.new_directory(folder.final, replace=True) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        for path in partial.iterdir():
            path.chmod(0o644)  # safetensors writes 0600; evaluate may run as another user


if __name__ == "__main__":
    end(run_job("train", main))
