"""What must be equal on a GPU: kernels to their references, and a run to itself after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from tests.gpu.work import Case, RandomChats, Steps, trainer_of
from workloads.train.model import AssistantLoss, attention_inputs

Figures = dict[str, float | int | str]
Check = Callable[[torch.device, bool], Figures]
SMALL = Case(name="small", model="Qwen3-0.6B", settings={"sequence_length": 1024})


def attention_kinds_agree(device: torch.device, is_tiny: bool) -> Figures:
    """Logits and gradients of packed rows by varlen against a dense mask in fp32; 2 % in bf16."""
    from tests.gpu.work import random_model

    kinds = ("varlen", "sdpa") if device.type == "cuda" else ("auto",)
    exact = replace(SMALL, is_tiny=is_tiny, settings=SMALL.settings | {"dtype": "fp32"})
    found: dict[str, list[torch.Tensor]] = {}
    for kind, case in [
        *((k, replace(exact, settings=SMALL.settings | {"attention": k})) for k in kinds),
        ("reference", exact),
    ]:
        task = RandomChats(case)
        model = random_model(case, device)
        task.loss(model, device)
        batch = task.collate(task.rows[:2]).to(device)
        real = batch.document_BT >= 0
        logits = model(**attention_inputs(model.config, batch), use_cache=False).logits[real]
        logits.float().square().mean().backward()
        gradients = torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])
        found[kind] = [logits.detach().float(), gradients.float()]
        assert kind in ("auto", "reference", model.config._attn_implementation)
    figures: Figures = {}
    for kind in kinds:
        for what, value, expected in zip(
            ("logits", "gradients"), found[kind], found["reference"], strict=True
        ):
            error = float((value - expected).norm() / expected.norm())
            assert error < 0.02, f"{kind}: {what} are {error:.2%} off"
            figures[f"{kind}_{what}_error"] = round(error, 6)
    return figures


def losses_are_the_references(device: torch.device, is_tiny: bool) -> Figures:
    """Five steps as shipped against fp32, a dense mask, no kernels, whole logits.

    Every loss within 1 %, and every norm of a gradient, which random labels move more, within 3 %.
    """
    import_module("peft")
    figures: Figures = {}
    plain = {"dtype": "fp32", "attention": "sdpa", "compile": False, "loss_chunk_tokens": 0}
    for method in ("lora", "full"):
        curves: list[list[tuple[float, float]]] = []
        for settings in ({}, {**plain, "liger": "off"}):
            more = {"method": method, "max_steps": 5, "learning_rate": 1e-4, **settings}
            case = replace(SMALL, is_tiny=is_tiny, settings=SMALL.settings | more)
            steps = Steps()
            trainer_of(case.config, RandomChats(case), device, steps).run()
            curves.append([(result.loss, result.grad_norm) for result in steps.results])
        for index, (what, most) in enumerate((("loss", 0.01), ("grad_norm", 0.03))):
            apart = max(abs(a[index] / b[index] - 1) for a, b in zip(*curves, strict=True))
            assert apart < most, f"{method} {what}: {curves}"
            figures[f"{method}_{what}_apart"] = round(apart, 6)
    return figures


def chunks_are_the_whole(device: torch.device, is_tiny: bool) -> Figures:
    """The loss in chunks and its gradient against all logits at once; 0.1 % and 1 % in bf16."""
    from tests.gpu.work import random_model

    case = replace(SMALL, is_tiny=is_tiny)
    found: list[tuple[float, torch.Tensor]] = []
    for chunk in (None, 100):
        task, model = RandomChats(case), random_model(case, device)
        task.loss(model, device)
        batch = task.collate(task.rows[:1]).to(device)
        loss = AssistantLoss(model, chunk_tokens=chunk)(batch)
        loss.backward()
        found.append((loss.item(), model.get_input_embeddings().weight.grad.float()))
    (whole, wanted), (chunked, gradient) = found
    figures = {
        "loss_error": abs(chunked / whole - 1),
        "gradient_error": float((gradient - wanted).norm() / wanted.norm()),
    }
    assert figures["loss_error"] < 1e-3, figures
    assert figures["gradient_error"] < 1e-2, figures
    return {name: round(value, 6) for name, value in figures.items()}


def a_killed_run_goes_on(device: torch.device, is_tiny: bool) -> Figures:
    """The job `train`, killed by SIGKILL in its steps and started again: losses within 1e-4."""
    import_module("prometheus_client")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place in ("chkpt", "results", "whole", "killed"):
            (folder / place).mkdir()
        whole = _train(folder, "whole", device)
        assert whole.wait(timeout=300) == 0, (folder / "whole" / "log").read_text()
        killed = _train(folder, "killed", device)
        curve = folder / "results" / "killed" / "loss_curve.jsonl"
        while not (curve.exists() and curve.read_text().count("\n") >= 5):
            assert killed.poll() is None, (folder / "killed" / "log").read_text()
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
        assert killed.wait(timeout=60) == -signal.SIGKILL
        again = _train(folder, "killed", device, SLURM_RESTART_COUNT="1")
        assert again.wait(timeout=300) == 0, (folder / "killed" / "log").read_text()
        curves = [
            [json.loads(line)["loss"] for line in path.read_text().splitlines()]
            for path in (curve, folder / "results" / "whole" / "loss_curve.jsonl")
        ]
        log = (folder / "killed" / "log").read_text()
    assert len(curves[0]) == len(curves[1]) == 40
    assert "resum" in log, log
    apart = max(abs(a / b - 1) for a, b in zip(*curves, strict=True))
    assert apart < 1e-4, curves
    return {"steps": len(curves[0]), "apart": apart}


def _train(folder: Path, job: str, device: torch.device, **more: str) -> subprocess.Popen[str]:
    places = {
        f"SOPERATOR_PLACE_{place.upper()}": str(folder / place) for place in ("chkpt", "results")
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SOPERATOR_"))}
    hidden = {} if device.type == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    settings = ("max_steps=40", "checkpoint_every=2", "gate=null", "micro_batch_size=2")
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "workloads.train", "--recipe", "vit_full_1xcpu"),
            *(part for each in settings for part in ("--set", f"train.{each}")),
        ],
        env=kept | places | hidden | {"SLURM_JOB_ID": job, "SOPERATOR_JOB": "gpu"} | more,
        stdout=(folder / job / "log").open("a"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


CHECKS: tuple[Check, ...] = (
    attention_kinds_agree,
    losses_are_the_references,
    chunks_are_the_whole,
    a_killed_run_goes_on,
)
