"""Parts of the trainer that need no run: loss, attention, schedule, event files, gate, ledger."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from infra.state import CHECKOUT
from tests.nightly import at_night
from tests.workloads.test_data import example_of, rows_of
from workloads.common.dist import World
from workloads.common.exit_codes import ExitCode, NotRunError, WorkloadError
from workloads.data.token_rows import collate, pack
from workloads.recipes.train import GateConfig, TrainConfig
from workloads.train import finish
from workloads.train import model as train_model
from workloads.train.loop import Trainer, learning_rate_factor
from workloads.train.measure import Events, Ledger, LossCurve, StepResult
from workloads.train.model import (
    IGNORED,
    AssistantLoss,
    attention_inputs,
    build_model,
    chunked_loss,
    low_activations,
    prepare_model,
    summed_loss,
)
from workloads.train.strategy import autocast, build_optimizer, build_scaler, spread_fsdp

CONFIG = TrainConfig(dataset="x", max_steps=1, learning_rate=0.1)


def packed_batch() -> Any:
    """Returns two rows of two documents each, of different lengths."""
    examples = [example_of(size, first=first) for first, size in enumerate((9, 5, 7, 4))]
    return collate(pack(rows_of(examples), sequence_length=14), pad_id=0)


@pytest.mark.feature("S000-32", "S003-40", "S004-17")
@pytest.mark.parametrize(
    ("dtype", "method", "is_mixed"),
    [
        *(("fp16", "lora", True), ("bf16", "lora", True), ("fp32", "lora", False)),
        *(("fp16", "full", True), ("bf16", "full", True), ("fp32", "full", False)),
    ],
)
def test_only_fp16_has_a_loss_scale_and_weights_of_two_types_compute_in_one(
    dtype: str, method: str, is_mixed: bool
) -> None:
    config = replace(CONFIG, dtype=dtype, method=method)
    assert build_scaler(config, torch.device("cpu")).is_enabled() == (dtype == "fp16")
    with autocast(config, torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu") == is_mixed
    # FSDP2 gathers the weights of full training in 16 bits itself.
    with autocast(config, torch.device("cpu"), kind="fsdp"):
        assert torch.is_autocast_enabled("cpu") == (is_mixed and method == "lora")


@pytest.mark.feature("S003-40", "S004-17")
def test_full_training_in_bf16_sums_gradients_in_fp32_and_keeps_small_updates(
    model_dir: Path,
) -> None:
    """The sum of 32 gradients in bf16 was 0.6 % off; and 1e-6 is below any weight's rounding."""
    config, cpu = replace(CONFIG, method="full", dtype="bf16"), torch.device("cpu")
    model = low_activations(build_model(model_dir, config, device=cpu), config)
    loss = AssistantLoss(model)
    weight = model.model.layers[0].mlp.up_proj.weight
    whole = torch.zeros_like(weight, dtype=torch.float64)
    for number in range(32):
        batch = packed_batch()
        batch.input_ids_BT.random_(0, 200, generator=torch.Generator().manual_seed(number))
        with autocast(config, cpu):
            value = loss(batch)
        (gradient,) = torch.autograd.grad(value, [weight], retain_graph=True)
        whole += gradient.double()
        value.backward()
    assert weight.grad is not None
    assert (weight.grad.double() - whole).norm() < 1e-6 * whole.norm()
    before = weight.detach().clone()
    optimizer = build_optimizer([weight], lr=1e-6, weight_decay=0.0)
    for _ in range(3):
        optimizer.step()
    moved = (weight.detach() - before).abs().median().item()
    assert moved == pytest.approx(3e-6, rel=0.1)


@pytest.mark.feature("S003-38")
@pytest.mark.parametrize("wanted", [True, False])
def test_no_cache_is_kept_in_training_and_activations_are_recomputed_where_that_is_declared(
    model: Any, wanted: bool
) -> None:
    model.config.use_cache = True
    config = replace(CONFIG, method="full", gradient_checkpointing=wanted)
    ready = prepare_model(model, config)
    assert not ready.config.use_cache
    assert ready.is_activation_checkpointing == wanted


@pytest.mark.feature("S000-32")
def test_a_step_that_overflows_in_fp16_is_left_out_and_the_next_has_half_the_scale() -> None:
    """The scale starts at 65536; fp16 ends at 65504, so that a gradient of 1 becomes inf.

    It is clipped between `unscale_` and `step`: without its scale.
    """
    config, cpu = replace(CONFIG, dtype="fp16"), torch.device("cpu")
    scaler = build_scaler(config, cpu)
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.25)

    def step() -> tuple[float, float, float]:
        optimizer.zero_grad()
        with autocast(config, cpu):
            loss = layer(torch.ones(1, 1)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        (norm,) = [weight.grad.item() for weight in layer.parameters() if weight.grad is not None]
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale(), layer.weight.item(), norm

    assert [step(), step()] == [(32768, 1.0, math.inf), (32768, 0.75, 1.0)]


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
@pytest.mark.parametrize("trained", [True, False])
def test_the_loss_in_chunks_is_the_loss_with_its_gradients(
    chunk_tokens: int, trained: bool
) -> None:
    torch.manual_seed(0)
    head = nn.Linear(5, 11, bias=True).requires_grad_(trained)
    labels = torch.randint(0, 11, (7,))
    labels[2] = IGNORED
    hidden = torch.randn(7, 5, requires_grad=True)
    plain = summed_loss(head(hidden), labels) * 0.3
    plain.backward()
    expected = [hidden.grad, head.weight.grad, head.bias.grad]
    hidden.grad = head.weight.grad = head.bias.grad = None
    chunked = chunked_loss(hidden, labels, head, chunk_tokens=chunk_tokens) * 0.3
    chunked.backward()
    torch.testing.assert_close(chunked, plain)
    for ours, theirs in zip([hidden.grad, head.weight.grad, head.bias.grad], expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_tensor_of_the_chunked_loss_holds_all_logits() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            Largest.numel = max(Largest.numel, *sizes, 0)
            return result

    head = nn.Linear(4, 1000, bias=False).requires_grad_(False)
    hidden, labels = torch.randn(64, 4, requires_grad=True), torch.zeros(64, dtype=torch.long)
    with Largest():
        chunked_loss(hidden, labels, head, chunk_tokens=8).backward()
    assert Largest.numel == 8 * 1000


@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_the_models_loss_is_the_same_in_chunks(model: Any, chunk_tokens: int | None) -> None:
    batch = packed_batch()
    plain = AssistantLoss(model)(batch)
    torch.testing.assert_close(AssistantLoss(model, chunk_tokens=chunk_tokens)(batch), plain)


@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_the_models_loss_is_that_of_all_logits(model: Any, chunk_tokens: int | None) -> None:
    batch = packed_batch()
    logits = model(**attention_inputs(model.config, batch)).logits
    expected = summed_loss(logits.flatten(0, 1), batch.labels_BT.flatten())
    torch.testing.assert_close(AssistantLoss(model, chunk_tokens=chunk_tokens)(batch), expected)


@pytest.mark.parametrize(
    ("kind", "after_the_head"),
    [
        ("Gemma2", {"final_logit_softcapping": 0.5, "head_dim": 16}),
        ("Granite", {"logits_scaling": 8.0}),
        ("Cohere", {"logit_scale": 0.0625}),
        ("RecurrentGemma", {"logits_soft_cap": 1.0, "num_hidden_layers": 3}),
        ("Roberta", {"is_decoder": True}),
        ("Llama4", {}),
    ],
)
def test_the_loss_in_chunks_knows_what_a_model_does_after_its_head(
    kind: str, after_the_head: dict[str, Any]
) -> None:
    text = "TextConfig" if kind == "Llama4" else "Config"
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    config = getattr(transformers, f"{kind}{text}")(**{**sizes, **after_the_head})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights)  # large logits, so that a missing cap or scale shows
    batch = packed_batch()
    whole = AssistantLoss(model)(batch)
    torch.testing.assert_close(AssistantLoss(model, chunk_tokens=4)(batch), whole)


def test_logits_exist_at_labels_alone_also_where_rows_learn_elsewhere(model: Any) -> None:
    batch, seen = packed_batch(), []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _module, _arguments, out: seen.append(out.shape))
    AssistantLoss(model)(batch)
    hook.remove()
    ((num_logits, _),) = seen
    assert num_logits == batch.num_label_tokens
    assert num_logits < (batch.labels_BT != IGNORED).any(0).sum() * len(batch.labels_BT)


@pytest.mark.feature("S003-02", "S003-40", "S004-17")
@pytest.mark.parametrize(("dtype", "computed"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_shards_are_gathered_in_the_declared_type_and_gradients_summed_in_fp32(
    model: Any, monkeypatch: pytest.MonkeyPatch, dtype: Any, computed: torch.dtype
) -> None:
    class DividedError(Exception):
        pass

    policies: list[Any] = []

    def divide(_: nn.Module, **options: Any) -> None:
        policies.append(options["mp_policy"])
        assert options["reshard_after_forward"] is not False, "else every layer stays whole"
        raise DividedError

    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", divide)
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_, **__: None)

    def build(_: object, *, empty: bool) -> nn.Module:
        assert empty, "each rank would have the whole model"
        return model

    task = SimpleNamespace(build=build, loss=lambda each, _: each)
    run: Any = SimpleNamespace(
        config=replace(CONFIG, dtype=dtype), task=task, strategy="fsdp", keeps_gathered=False
    )
    with pytest.raises(DividedError):
        spread_fsdp(run, World(rank=0, local_rank=0, world_size=2, device=torch.device("cpu")))
    assert (policies[0].param_dtype, policies[0].reduce_dtype) == (computed, torch.float32)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("linear", [0.5, 1.0, 1.0, 0.9, 0.1]), ("constant", [0.5, 1.0, 1.0, 1.0, 1.0])],
)
def test_schedules_after_the_warm_up(schedule: Any, expected: list[float]) -> None:
    config = TrainConfig(
        dataset="x", max_steps=12, warmup_steps=2, learning_rate=1.0, schedule=schedule
    )
    factors = [learning_rate_factor(step, config=config, num_steps=12) for step in (0, 1, 2, 3, 11)]
    assert factors == pytest.approx(expected)


def scalars_of(folder: Path) -> list[tuple[int, str, float]]:
    """Returns step, tag and value of every scalar that TensorBoard shows of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    found = [(tag, each) for tag in read.Tags()["scalars"] for each in read.Scalars(tag)]
    return [(each.step, tag, each.value) for tag, each in found]


@pytest.mark.feature("S001-45")
def test_events_hold_what_was_written_and_a_run_that_goes_on_has_each_step_once(
    tmp_path: Path,
) -> None:
    for first in (6, 8):
        events = Events(tmp_path / "events")
        for step in range(first, first + 3):
            events.add(step, {"train/loss": first + step / 4})
        events.close()
        time.sleep(1)  # TensorBoard reads files in the order of their names, which count seconds
    losses = [(step, value) for step, _, value in scalars_of(events.folder)]
    assert losses == [(6, 7.5), (7, 7.75), (8, 10), (9, 10.25), (10, 10.5)]


@contextlib.contextmanager
def full_disk(folder: Path, room: int) -> Iterator[None]:
    """Within, no file grows beyond the largest in `folder` and `room` bytes."""
    largest = max(path.stat().st_size for path in folder.iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_events_go_on_in_another_file_after_a_write_that_failed(tmp_path: Path) -> None:
    """The thread that writes ends with its first failure, and would refuse all that comes after."""
    events = Events(tmp_path / "events")
    events.add(1, {"train/loss": 1.0})
    events._writer.flush()
    with full_disk(events.folder, room=10):
        events._writer.add_scalar("train/loss", 1.0, 2)
        time.sleep(0.5)  # the thread's: the loop does not wait for it
        with pytest.raises(OSError, match="File too large"):
            events.add(3, {"train/loss": 1.0})
    time.sleep(1)
    events.add(6, {"train/loss": 2.0})
    events.close()
    assert [step for step, _, _ in scalars_of(events.folder)] == [1, 6]


def test_weights_and_biases_has_the_scalars_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with the two calls that are used; the package is in no lock file of ours."""
    made: list[Any] = []
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wandb.py").write_text(
        "runs = []\n"
        "class Run:\n"
        "    def __init__(self, **named): self.named, self.lines = named, []\n"
        "    def log(self, scalars, step): self.lines.append((step, scalars))\n"
        "    def finish(self): self.lines.append('finished')\n"
        "def init(**named):\n"
        "    if named['name'] == 'refused': raise RuntimeError('no network')\n"
        "    runs.append(Run(**named))\n"
        "    return runs[-1]\n"
    )
    Events(tmp_path / "silent").close()
    monkeypatch.setenv("WANDB_MODE", "offline")
    Events(tmp_path / "refused").close()
    events = Events(tmp_path / "12")
    events.add(1, {"train/loss": 1.5})
    events.close()
    made = __import__("wandb").runs
    assert [run.named["id"] for run in made] == ["12"]
    assert made[0].lines == [(1, {"train/loss": 1.5}), "finished"]


def outcomes(tmp_path: Path, *, is_gpu: bool, **metrics: float) -> dict[str, str]:
    """Returns the gate's outcome by criterion, with weights there."""
    (tmp_path / "adapter_model.safetensors").touch()
    config = GateConfig(max_loss=0.5, min_tokens_per_s_per_gpu=2000)
    found = finish.judge(config, final=tmp_path, metrics=metrics, is_gpu=is_gpu)
    return {each.name: each.outcome for each in found}


@pytest.mark.feature("S001-39", "S001-40", "S001-42", "S002-49")
def test_the_gate_tells_pass_fail_and_not_run_apart(tmp_path: Path) -> None:
    good = outcomes(tmp_path, is_gpu=True, last_loss=0.4, train_tokens_per_s_per_gpu=2001.0)
    assert set(good.values()) == {"PASS"}
    bad = outcomes(tmp_path, is_gpu=True, last_loss=0.5, train_tokens_per_s_per_gpu=2000.0)
    assert (bad["loss"], bad["tokens/s/GPU"]) == ("FAIL", "FAIL")
    on_cpu = outcomes(tmp_path, is_gpu=False, last_loss=0.4)
    assert on_cpu["tokens/s/GPU"] == "NOT RUN"
    assert outcomes(tmp_path, is_gpu=True)["loss"] == "NOT RUN"
    (tmp_path / "adapter_model.safetensors").unlink()
    found = finish.judge(GateConfig(), final=tmp_path, metrics={}, is_gpu=True)
    assert {each.name: each.outcome for each in found}["final/"] == "FAIL"
    with pytest.raises(WorkloadError, match="holds no weights"):
        finish.refuse_failed(found)


@pytest.mark.feature("S001-42")
def test_a_bound_that_nobody_measured_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").touch()
    config = GateConfig(max_loss=0.5, min_tokens_per_s_per_gpu=2000)

    def judged(*, is_gpu: bool, **metrics: float) -> tuple[finish.Criterion, ...]:
        return finish.judge(config, final=tmp_path, metrics=metrics, is_gpu=is_gpu)

    on_gpu = judged(is_gpu=True, last_loss=0.4)
    assert finish.verdict(on_gpu) == "NOT RUN"
    with pytest.raises(NotRunError, match="tokens/s/GPU not measured") as refused:
        finish.refuse_failed(on_gpu)
    assert refused.value.exit_code is ExitCode.NOT_RUN
    # Declared for GPUs: a CPU has nothing to judge.
    finish.refuse_failed(judged(is_gpu=False, last_loss=0.4))
    assert finish.verdict(judged(is_gpu=True, last_loss=0.6)) == "FAIL"


def test_a_line_of_the_curve_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """What a full disk cuts would be one line with the next step's."""
    curve = LossCurve(tmp_path / "curve.jsonl", first_step=0)
    figures = {"step": 0, "loss": 1.0, "grad_norm": 1.0, "num_tokens": 8}
    curve.append(figures)
    whole = curve.path.read_bytes()
    room = full_disk(tmp_path, room=10)
    with room, pytest.raises(OSError, match="No space left"):
        curve.append(figures)
    assert curve.path.read_bytes() == whole
    curve.append(figures)
    assert curve.path.read_bytes() == whole * 2


def test_a_curve_that_cannot_be_cut_stays_as_it_was(tmp_path: Path) -> None:
    """A kill or a full disk at the start of a resumed run took all lines with it."""
    curve = LossCurve(tmp_path / "curve.jsonl", first_step=0)
    for step in range(4):
        curve.append({"step": step, "loss": 1.0})
    whole = curve.path.read_bytes()
    with full_disk(tmp_path, room=10 - len(whole)), pytest.raises(OSError, match="too large"):
        LossCurve(curve.path, first_step=2)
    assert curve.path.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["curve.jsonl"]
    LossCurve(curve.path, first_step=2)
    assert curve.path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])


@pytest.mark.feature("S002-82", "S003-39")
def test_the_ledger_counts_padding_recompute_and_time() -> None:
    ledger = Ledger(began_s=0.0)
    ledger.add(
        StepResult(
            step=0,
            loss=1.0,
            grad_norm=1.0,
            learning_rate=0.1,
            num_tokens=60,
            num_positions=80,
            num_label_tokens=50,
        )
    )
    ledger.seconds["checkpoint"].append(1.0)
    shares = ledger.shares(recomputed=1, method="lora")
    assert shares["padding_positions_percent"] == 25
    assert shares["recompute_flops_percent"] == pytest.approx(100 / 3)
    for recomputed, percent in ((1, 25), (0.5, 100 / 7), (0, 0)):
        shares_of = ledger.shares(recomputed=recomputed, method="full")
        assert shares_of["recompute_flops_percent"] == pytest.approx(percent)
    assert shares["checkpoint_time_percent"] > 0
    assert shares["data_wait_time_percent"] == 0


@pytest.mark.feature("S002-68", "S002-82")
def test_seconds_are_counted_to_what_took_them(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([11.0, 13.0, 20.0, 25.0, 110.0])
    clock = SimpleNamespace(perf_counter=lambda: next(moments))
    monkeypatch.setattr("workloads.train.measure.time", clock)
    ledger = Ledger(began_s=10.0)
    for use in ("data_wait", "checkpoint"):
        with ledger.spend(use):
            pass
    shares = ledger.shares(recomputed=0, method="full")
    assert shares["train_time_s"] == 100
    assert (shares["data_wait_time_percent"], shares["checkpoint_time_percent"]) == (2, 5)


def test_four_bits_are_refused_where_the_library_gives_wrong_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from workloads.train import inputs

    monkeypatch.setattr(inputs, "find_spec", lambda name: None)
    assert "not installed" in str(inputs.four_bit_problem(has_gpu=False))
    monkeypatch.setattr(inputs, "find_spec", lambda name: SimpleNamespace())
    assert inputs.four_bit_problem(has_gpu=True) is None


class Waits(TorchDispatchMode):
    """Counts operations for whose result a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket._qualified_op_name
        masks = args[1] if name in ("aten::index", "aten::index_put_") else ()
        by_mask = any(each is not None and each.dtype == torch.bool for each in masks)
        if by_mask or name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("chunk_tokens", [0, 64])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_step_waits_for_a_gpu_once(
    run: Any, monkeypatch: pytest.MonkeyPatch, method: str, chunk_tokens: int
) -> None:
    """For the loss and the norm of the gradient together, however many micro batches it has."""
    counts: list[list[str]] = []
    step, read = Trainer._step, torch.Tensor.tolist

    def counted(self: Trainer, batches: list[Any]) -> Any:
        with Waits() as waits, monkeypatch.context() as patched:
            # A list is read past the dispatcher.
            patched.setattr(
                torch.Tensor, "tolist", lambda each: waits.seen.append("tolist") or read(each)
            )
            found = step(self, batches)
        counts.append(waits.seen)
        return found

    monkeypatch.setattr(Trainer, "_step", counted)
    run("prepare-data")
    code, _ = run(
        *("train", f"train.method={method}", "train.max_steps=2", "train.gradient_accumulation=2"),
        *(
            "train.sequence_length=1600",
            "train.overlong=drop",
            f"train.loss_chunk_tokens={chunk_tokens}",
        ),
    )
    assert code == 0
    assert counts == [["tolist"], ["tolist"]]


@pytest.mark.parametrize(
    ("family", "method"),
    [
        at_night("qwen2", "lora"),
        at_night("qwen3", "full"),
        ("llama", "lora"),
        at_night("mistral", "full"),
    ],
)
def test_liger_s_kernels_give_the_losses_and_gradients_of_torch(family: str, method: str) -> None:
    """Liger itself, through transformers' integration and under adapters; in numpy, by Triton."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.workloads.liger_interpreted", family, method],
        cwd=CHECKOUT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fused_loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert found["apart"] < 2e-6
    name = family.capitalize()
    assert found["replaced"] == [f"{name}MLP", f"{name}RMSNorm"]


def test_on_a_cpu_and_where_liger_is_off_the_model_stays_as_it_is(model: Any) -> None:
    before = model.model.layers[0].mlp.forward
    for config, device in ((CONFIG, "cpu"), (replace(CONFIG, liger="off"), "cuda")):
        assert train_model.use_liger(model, config, torch.device(device)) is model
        assert model.model.layers[0].mlp.forward == before
