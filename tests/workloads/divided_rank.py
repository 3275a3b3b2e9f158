"""One rank of a model divided by layer width, by stages or by both, with torch's own means.

tensor: parallelize_module, as Megatron-LM divides layers (arxiv.org/abs/1909.08053), embedding and
head by the vocabulary. pipeline: torch.distributed.pipelining, 1F1B. data: other rows, and where
there are stages too the optimizer's state is divided (ZeRO-1). Prints what it holds in a train
step beside the losses of the whole model; arguments: settings, model folder.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import set_checkpoint_early_stop

from cost.size.memory import Dtype, Method, Training
from tests.workloads import varlen_kernel
from tests.workloads.bytes_of_a_rank import Storages
from tests.workloads.test_plan import DTYPES, config_of, num_bytes, state_tensors
from workloads.common.dist import world
from workloads.data.token_rows import Batch
from workloads.recipes.train import TrainConfig
from workloads.train.model import attention_inputs, build_model, chunked_loss
from workloads.train.strategy import autocast

CPU = torch.device("cpu")
_BY_OUTPUTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_INPUTS = ("o_proj", "down_proj")


def whole_model(folder: Path, config: TrainConfig) -> Any:
    """Returns the trainer's model; without adapters in the type that it computes in."""
    model = build_model(folder, config, device=CPU)
    return model if config.has_adapters else model.to(DTYPES[Dtype(config.dtype)])


def base_of(model: Any) -> Any:
    """Returns the causal language model that adapters may be around."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def divide_layers(model: Any, mesh: DeviceMesh) -> None:
    """Leaves each rank of `mesh` its heads, its part of the MLP and of the vocabulary."""
    base = base_of(model)
    outer: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(),
    }
    parallelize_module(base, mesh, outer)
    embedding: Any = base.get_input_embeddings().weight
    if embedding.requires_grad:
        embedding.register_post_accumulate_grad_hook(_divide_gradient)
    for layer in base.get_decoder().layers:
        plan: dict[str, Any] = {}
        for name, part in layer.named_modules():
            module = name.rpartition(".")[2]
            if module not in (*_BY_OUTPUTS, *_BY_INPUTS):
                continue
            has_outputs = module in _BY_OUTPUTS
            kind = ColwiseParallel if has_outputs else RowwiseParallel
            if isinstance(part, nn.Linear):
                plan[name] = kind()
            else:  # of an adapter's two matrices one is as wide as the hidden state
                wide = "lora_B" if has_outputs else "lora_A"
                plan |= {f"{name}.base_layer": kind(), f"{name}.{wide}.default": kind()}
        parallelize_module(layer, mesh, plan)


def _divide_gradient(weight: Any) -> None:
    """Leaves a rank its part: of an embedding torch makes the whole, which FSDP2 divides so too."""
    weight.grad = weight.grad.redistribute(placements=weight.placements)


class Stage(nn.Module):
    """The layers of one stage of a model, with the embedding or the loss around them.

    `words`: the ranks that divide the vocabulary. Without chunks the last stage returns logits.
    """

    def __init__(
        self,
        model: Any,
        batches: Sequence[Batch],
        *,
        stage: int = 0,
        stages: int = 1,
        chunk_tokens: int | None,
        words: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        base = base_of(model)
        self.decoder, self.batches = base.get_decoder(), batches
        self.chunk_tokens, self.words = chunk_tokens, words
        self.is_first, is_last = stage == 0, stage == stages - 1
        here = len(self.decoder.layers) // stages
        self.decoder.layers = self.decoder.layers[stage * here : (stage + 1) * here]
        base.config.num_hidden_layers = here
        if not self.is_first:
            del self.decoder.embed_tokens
        self.head = base.lm_head if is_last else None
        if not is_last:
            self.decoder.norm = nn.Identity()
        self.saved: Saved | None = None

    def forward(self, inputs: torch.Tensor, *, index: int) -> torch.Tensor:
        """Returns the hidden state of the micro batch `index`, its logits or its loss."""
        arguments = attention_inputs(self.decoder.config, self.batches[index])
        given = arguments.pop("input_ids")
        if self.saved:
            for tensor in filter(torch.is_tensor, arguments.values()):
                self.saved.pack(tensor)
        arguments |= {"input_ids": given} if self.is_first else {"inputs_embeds": inputs}
        with self.saved.count() if self.saved else contextlib.nullcontext():
            hidden_states = self.decoder(**arguments, use_cache=False).last_hidden_state
            if self.head is not None and self.chunk_tokens is None:
                return self.head(hidden_states)
        if self.head is None:
            return hidden_states
        learned = hidden_states.flatten(0, 1), self.batches[index].labels_BT.flatten()
        if self.words is None:
            return chunked_loss(*learned, self.head, chunk_tokens=self.chunk_tokens)
        weight: Any = self.head.weight
        return _DividedLoss.apply(*learned, weight.to_local(), self.chunk_tokens, self.words)

    def loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the summed cross entropy in fp32 of what forward returned."""
        if self.chunk_tokens is not None:
            return output
        logits: Any = output.flatten(0, 1).float()
        if self.words:
            logits = DTensor.from_local(logits, self.words, [Shard(-1)])
        loss: Any = cross_entropy(logits, labels.flatten(), reduction="sum")
        return loss.to_local() if self.words else loss


class _DividedLoss(torch.autograd.Function):
    """The trainer's loss in chunks, of logits that ranks have for their own words each."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        labels: torch.Tensor,
        weight: torch.Tensor,
        chunk_tokens: int,
        words: DeviceMesh,
    ) -> torch.Tensor:
        group, first = words.get_group(), words.get_local_rank() * len(weight)
        grad_hidden = torch.empty_like(hidden_states)
        needs_weight = ctx.needs_input_grad[2]
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        total = torch.zeros(())
        for start in range(0, len(hidden_states), chunk_tokens):
            part = slice(start, start + chunk_tokens)
            hidden, target = hidden_states[part], labels[part, None] - first
            logits = (hidden @ weight.t()).float()
            greatest = logits.amax(-1, keepdim=True)
            dist.all_reduce(greatest, dist.ReduceOp.MAX, group)
            logits -= greatest
            is_here = (target >= 0) & (target < len(weight))
            target = target.where(is_here, 0)
            picked = logits.gather(1, target) * is_here
            dist.all_reduce(picked, group=group)
            sums = logits.exp_().sum(-1, keepdim=True)
            dist.all_reduce(sums, group=group)
            total += (sums.log() - picked).sum()
            gradient = logits.div_(sums).scatter_add_(1, target, -is_here.float())
            low = gradient.to(weight.dtype)
            grad_hidden[part] = low @ weight
            if grad_weight is not None:
                grad_weight += low.t() @ hidden
            del logits, gradient, low
        dist.all_reduce(grad_hidden, group=group)
        ctx.save_for_backward(
            grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype)
        )
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        (scale,), (grad_hidden, grad_weight) = grad_outputs, ctx.saved_tensors
        grad_hidden = grad_hidden * scale.to(grad_hidden.dtype)
        grad_weight = None if grad_weight is None else grad_weight * scale.to(grad_weight.dtype)
        return grad_hidden, None, grad_weight, None, None


class Seen(Storages):
    """Sees what is made within an operation on divided tensors, and no storage of a wrapper."""

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage that holds this rank's values of `tensor`."""
        super().add(local(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(each, (DTensor, AsyncCollectiveTensor)) for each in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


class Optimizer:
    """AdamW; weights of 16 bits have a copy in fp32, which `group` divides with the states."""

    def __init__(self, trained: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> None:
        self.trained, self.group = trained, group
        self.has_copy = any(weight.dtype != torch.float32 for weight in trained)
        self.copy = [self._own(self._flat(trained)).clone()] if self.has_copy else []
        self.adam = torch.optim.AdamW(self.copy or trained, lr=0.01, weight_decay=0.0)

    @property
    def bytes_here(self) -> int:
        """Bytes of states and copy."""
        return num_bytes(map(local, [*state_tensors(self.adam), *self.copy]))

    def _flat(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        flat = torch.cat([local(each.detach()).flatten().float() for each in tensors])
        ways = self.group.size() if self.group else 1
        return nn.functional.pad(flat, (0, -len(flat) % ways))

    def _own(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.chunk(self.group.size())[self.group.rank()] if self.group else flat

    @torch.no_grad()
    def step(self) -> None:
        """Updates the weights and clears their gradients."""
        if self.group:
            for weight in self.trained:
                dist.all_reduce(local(weight.grad), group=self.group)
        if self.has_copy:
            gradients: Any = [weight.grad for weight in self.trained]
            self.copy[0].grad = self._own(self._flat(gradients)).clone()
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        if self.has_copy:
            whole = self.copy[0]
            if self.group:
                whole = whole.new_empty(len(whole) * self.group.size())
                dist.all_gather_into_tensor(whole, self.copy[0], group=self.group)
            sizes = [local(weight).numel() for weight in self.trained]
            for weight, part in zip(self.trained, whole[: sum(sizes)].split(sizes), strict=True):
                local(weight).copy_(part.view_as(local(weight)))
                weight.grad = None


def local(tensor: Any) -> torch.Tensor:
    """Returns what this rank has of a tensor: of a divided one its part, and what arrives."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor


class Saved:
    """What autograd saves in forward passes, weights aside: bytes now and at the peak."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {
            local(each).untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())
        }
        self.storages = Seen()
        self.marks: list[int] = []
        """Bytes at the beginning of each layer."""

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Takes note of a tensor that is saved."""
        if local(tensor).untyped_storage()._cdata not in self.weights:
            self.storages.add(tensor)
            self.storages.look()
        return tensor

    def mark(self, *_: object) -> None:
        """Takes note of what there is before a layer."""
        self.marks.append(self.now)

    @property
    def now(self) -> int:
        """Bytes that are saved and still alive."""
        held = [each() for each in [*self.storages.alive.values()]]
        return sum(each.nbytes() for each in held if each is not None)

    @contextlib.contextmanager
    def count(self) -> Iterator[None]:
        """Counts what is saved here."""
        with saved_tensors_hooks(self.pack, lambda tensor: tensor):
            yield


def batches_of(plan: Training, vocab: int, *, data: int) -> list[Batch]:
    """Returns the micro batches of a train step of all replicas, with a label at every token."""
    size = (plan.micro_batch_size, plan.sequence_length)
    generator = torch.Generator().manual_seed(1)
    ids = [
        torch.randint(0, vocab, size, generator=generator)
        for _ in range(data * plan.gradient_accumulation)
    ]
    return [
        Batch(
            input_ids_BT=each,
            labels_BT=each.roll(-1, 1),
            position_ids_BT=torch.arange(size[1]).expand(size).contiguous(),
            document_BT=torch.zeros(size, dtype=torch.long),
            num_tokens=each.numel(),
            num_label_tokens=each.numel(),
        )
        for each in ids
    ]


def run(stage: Stage, index: int, forward: Callable[[], Any]) -> float:
    """Adds the gradients of one micro batch, without a pipeline; returns its loss."""
    batch = stage.batches[index]
    with forward():
        loss = stage.loss(stage(batch.input_ids_BT, index=index), batch.labels_BT)
    loss.backward()
    return loss.item()


def pipeline_of(stage: Stage, mesh: DeviceMesh, plan: Training, *, vocab: int) -> Any:
    """Returns a train step through all stages; 1F1B where there are micro batches for each."""
    number, stages = mesh.get_local_rank(), mesh.size()
    shape, dtype = stage.batches[0].input_ids_BT.shape, DTYPES[plan.dtype]
    num_words = vocab // (stage.words.size() if stage.words else 1)
    options: dict[str, Any] = {"device": "meta", "requires_grad": True}
    hidden_states, logits = (
        torch.empty(*shape, width, dtype=dtype, **options)
        for width in (stage.decoder.config.hidden_size, num_words)
    )
    result = logits if stage.chunk_tokens is None else torch.empty((), **options)
    pipe = PipelineStage(
        *(stage, number, stages, CPU),
        input_args=stage.batches[0].input_ids_BT if stage.is_first else hidden_states,
        output_args=hidden_states if stage.head is None else result,
        group=mesh.get_group(),
    )
    kind: Any = Schedule1F1B if len(stage.batches) >= stages else ScheduleGPipe
    schedule = kind(pipe, len(stage.batches), loss_fn=stage.loss, scale_grads=False)

    def step(forward: Callable[[], Any]) -> float:
        losses: list[torch.Tensor] = []
        with forward():
            schedule.step(
                arg_mbs=[(each.input_ids_BT,) * stage.is_first for each in stage.batches],
                kwarg_mbs=[{"index": index} for index in range(len(stage.batches))],
                target_mbs=[each.labels_BT for each in stage.batches],
                losses=None if stage.head is None else losses,
                return_outputs=False,
            )
        return sum(each.item() for each in losses)

    return step


def main() -> None:
    """Train two steps of the whole and of the divided model; print what the second one holds."""
    settings, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    ways = {name: settings.pop(name) for name in ("data", "pipeline", "tensor")}
    vocab, divides_state = (settings.pop(name) for name in ("vocab", "divides_state"))
    settings |= {"method": Method(settings["method"]), "dtype": Dtype(settings["dtype"])}
    plan = Training(**settings)
    config, chunk_tokens = config_of(plan), plan.logits_chunk_tokens
    varlen_kernel.as_on_a_gpu()
    # The base of adapters has fewer bits than they; elsewhere there is one type.
    forward: Any = partial(autocast, config, CPU) if config.has_adapters else contextlib.nullcontext
    with world() as here:
        mesh = init_device_mesh("cpu", (*ways.values(),), mesh_dim_names=(*ways,))
        batches = batches_of(plan, vocab, data=ways["data"])

        model = whole_model(folder, config)
        whole, whole_losses = Stage(model, batches, chunk_tokens=chunk_tokens), list[float]()
        optimizer = Optimizer([each for each in whole.parameters() if each.requires_grad], None)
        for _ in range(2 if here.is_main else 0):
            whole_losses.append(sum(run(whole, index, forward) for index in range(len(batches))))
            optimizer.step()

        model = whole_model(folder, config)
        words = mesh["tensor"] if ways["tensor"] > 1 else None
        if words:
            divide_layers(model, words)
        own = batches[mesh.get_local_rank("data") :: ways["data"]]
        number, stages = mesh.get_local_rank("pipeline"), ways["pipeline"]
        stage = Stage(
            *(model, own), stage=number, stages=stages, chunk_tokens=chunk_tokens, words=words
        )
        trained = [each for each in stage.parameters() if each.requires_grad]
        optimizer = Optimizer(trained, mesh.get_group("data") if divides_state else None)
        through = pipeline_of(stage, mesh["pipeline"], plan, vocab=vocab) if stages > 1 else None

        def step() -> float:
            # Stopped early, a layer computed again would leave its last sum over ranks for good:
            # torch keeps a collective's result until somebody waits for it.
            with contextlib.ExitStack() as stack:
                if words:
                    stack.enter_context(loss_parallel())
                    stack.enter_context(set_checkpoint_early_stop(False))
                if through:
                    return through(forward)
                return sum(run(stage, index, forward) for index in range(len(own)))

        losses = [step()]
        optimizer.step()
        stage.saved = saved = Saved(stage)
        for layer in stage.decoder.layers:
            layer.register_forward_pre_hook(saved.mark)
        storages = Seen()
        for tensor in (*stage.parameters(), *state_tensors(optimizer.adam), *optimizer.copy):
            storages.add(tensor)
        with storages:
            losses.append(step())
        gradients = [each.grad for each in trained if each.grad is not None]
        found = {
            "rank": here.rank,
            "stage": number,
            "losses": losses,
            "whole_losses": whole_losses,
            "weights": num_bytes(map(local, stage.parameters())),
            "gradients": num_bytes(map(local, gradients)),
            "optimizer": optimizer.bytes_here,
            "layer": saved.marks[2] - saved.marks[1],
            "activations": saved.storages.peak,
            "total": storages.peak,
        }
        print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
