"""A model ready to train and its loss: attention, 4-bit base, adapters, kernels, cross entropy."""

from __future__ import annotations

import contextlib
import inspect
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import cross_entropy, interpolate

from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.common.models import load_model, stored_tensors, torch_dtype
from workloads.data.token_rows import IGNORED
from workloads.recipes.train import TrainConfig

_TASK_TYPES = {
    "causal_lm": "CAUSAL_LM",
    "text_classification": "SEQ_CLS",
    "text_to_text": "SEQ_2_SEQ_LM",
    # peft has no type for images: the plain wrapper passes every argument on.
    "image_classification": None,
}
_HEAD = "classifier"
"""The new layer of a classifier, which has nothing to adapt: it is trained whole."""


def attach_lora(model: Any, config: TrainConfig) -> Any:
    """Return `model` frozen, with trainable adapters in fp32; seeded by the recipe."""
    import peft
    from peft.tuners.tuners_utils import BaseTunerLayer

    modules = config.lora.target_modules
    head = [_HEAD] if config.task.endswith("_classification") else None
    torch.manual_seed(config.seed)
    try:
        adapted = peft.get_peft_model(
            model,
            peft.LoraConfig(
                task_type=_TASK_TYPES[config.task],
                r=config.lora.rank,
                lora_alpha=config.lora.alpha,
                lora_dropout=config.lora.dropout,
                use_dora=config.lora.dora,
                target_modules="all-linear" if modules == ("all-linear",) else list(modules),
                modules_to_save=head,
                exclude_modules=head,
            ),
            autocast_adapter_dtype=True,
        )
    except ValueError as error:
        raise ConfigError(f"train.lora.target_modules {list(modules)}: {error}") from error
    for weight in adapted.parameters():
        if weight.requires_grad:  # a classifier's head too, which peft leaves in 16 bits
            weight.data = weight.data.float()
    if config.dtype != "fp32":
        # autocast brings input and adapter together. peft would do it by an
        # fp32 copy of each adapted layer's input, which stays for the backward pass.
        for layer in adapted.modules():
            if isinstance(layer, BaseTunerLayer):
                layer.cast_input_dtype_enabled = False  # pyright: ignore[reportArgumentType]
    return adapted


def choose_attention(
    config: TrainConfig, device: torch.device, shape: Any
) -> Literal["varlen", "sdpa"]:
    """Return the attention of this run on `device` for a model of the transformers config `shape`.

    varlen: torch's kernel for packed rows, which computes each document alone. sdpa: a dense mask
    of documents, T x T values a row. ConfigError where varlen is asked for and cannot run.
    """
    if config.attention == "sdpa":
        return "sdpa"
    problem = varlen_problem(config, device) or _varlen_problem_of(shape)
    if problem and config.attention == "varlen":
        raise ConfigError(f"train.attention varlen: {problem}; use auto")
    if problem:
        return "sdpa"
    from transformers import AttentionInterface

    AttentionInterface.register("varlen", varlen_attention)
    return "varlen"


def varlen_problem(config: TrainConfig, device: torch.device) -> str | None:
    """Return why torch's varlen kernel cannot run on `device`; None where it can."""
    if device.type != "cuda":
        return "there is no GPU"
    if config.dtype == "fp32":
        return "it has no fp32 kernels"
    # FlashAttention 2 and cuDNN, which it calls, start at Ampere (torch/nn/attention/varlen.py).
    capability = torch.cuda.get_device_capability(device)
    return None if capability >= (8, 0) else f"this GPU's compute capability {capability} is old"


def _varlen_problem_of(shape: Any) -> str | None:
    """Return what a model has in its attention that the kernel lacks; None where it fits."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(shape)]
    if not kind.is_backend_compatible():
        return f"{shape.model_type} has no exchangeable attention in transformers"
    text = shape.get_text_config()
    found = [name for name in _UNKNOWN_TO_VARLEN if getattr(text, name, None)]
    return f"{shape.model_type} has {', '.join(found)}" if found else None


# Of Gemma 2, GPT-2's family and DeepSeek, in transformers 5 (modeling_*.py, read 2026-11-24).
_UNKNOWN_TO_VARLEN: Final = (
    *("attn_logit_softcapping", "attention_dropout", "attn_pdrop", "v_head_dim", "kv_lora_rank"),
)


def varlen_attention(
    module: nn.Module,
    query_BHTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Return what each query sees of its own document, by the interface of transformers.

    The rows of a batch lie end to end; `cu_seq_lens_q` has the ends of all their documents.
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if others.get(name) is not None:
            raise ConfigError(
                f"train.attention: {type(module).__name__} has a {name}, which varlen lacks; use "
                "sdpa"
            )
    # The kernels have no fp32, which a base of 4 bits gives where it is given fp32.
    dtype = _autocast_dtype(query_BHTD) or query_BHTD.dtype
    query_NHD, key_NKD, value_NKD = (
        each.to(dtype).transpose(1, 2).flatten(0, 1) for each in (query_BHTD, key_BKTD, value_BKTD)
    )
    result: Any = varlen_attn(
        *(query_NHD, key_NKD, value_NKD),
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        **_SHARED_KEYS,
    )
    rows, _, length, _ = query_BHTD.shape
    return result.unflatten(0, (rows, length)), None


# torch 2.11 divides queries among fewer keys unasked; 2.15 wants to be told.
_SHARED_KEYS: Final[dict[str, Any]] = (
    {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
)


def _autocast_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """Return the type that autocast computes in where `tensor` is; None without autocast."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def attention_inputs(shape: Any, batch: Any) -> dict[str, Any]:
    """Return the arguments for `batch` of a model of the config `shape`, documents kept apart."""
    documents: dict[str, Any] = {"attention_mask": None}
    if shape._attn_implementation == "varlen":
        documents |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), batch.document_ends)
        documents |= dict.fromkeys(("max_length_q", "max_length_k"), batch.longest_document)
    else:
        documents["attention_mask"] = _masks(shape.get_text_config(), batch)
    return {"input_ids": batch.input_ids_BT, "position_ids": batch.position_ids_BT} | documents


def _masks(shape: Any, batch: Any) -> Any:
    """Return the mask of all layers, or one by kind of layer where only some see a window."""
    mask_B1TT, window = batch.mask_B1TT, getattr(shape, "sliding_window", None)
    if window is None or batch.longest_document <= window:
        return mask_B1TT
    near_B1TT = mask_B1TT.triu(1 - window)
    if getattr(shape, "layer_types", None) is None:
        return near_B1TT
    return {"full_attention": mask_B1TT, "sliding_attention": near_B1TT}


def four_bit_options(dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of from_pretrained that load a base in 4 bits: nf4, scales quantised."""
    from transformers import BitsAndBytesConfig

    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    }


def refuse_packing(model_dir: Path) -> None:
    """Raise ConfigError where conversations of one row would not be kept apart."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    shape = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(shape), None)
    kinds = getattr(shape.get_text_config(), "layer_types", None) or ()
    if getattr(kind, "_is_stateful", False) or _PASSING_ON.intersection(kinds):
        raise ConfigError(
            f"train.packing: {shape.model_type} has layers that pass on what they read, from one "
            "conversation of a row to the next, which no mask of attention keeps apart; set "
            "train.packing=false"
        )


# Of LFM2, of Qwen3-Next, Qwen3.5, MiniMax, Jamba, of Inkling, and their like (transformers 5.23).
_PASSING_ON: Final = frozenset({"conv", "linear_attention", "mamba", "hybrid", "hybrid_sliding"})


def use_liger(model: Any, config: TrainConfig, device: torch.device) -> Any:
    """Return `model` with Liger's kernels, where the recipe wants them and this device has them."""
    if config.liger == "off" or device.type != "cuda" or find_spec("liger_kernel") is None:
        return model
    from transformers.integrations.liger import apply_liger_kernel

    # The loss is ours: it takes positions with labels only, and may go in chunks.
    apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
    log(f"liger: its fused kernels, where it has them for {model.config.model_type}")
    return model


def summed_loss(logits_NV: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy in fp32, summed over labels that are not IGNORED."""
    return cross_entropy(logits_NV.float(), labels_N, ignore_index=IGNORED, reduction="sum")


def chunked_loss(
    hidden_NH: torch.Tensor, labels_N: torch.Tensor, head: nn.Module, *, chunk_tokens: int
) -> torch.Tensor:
    """Return the summed loss of `head(hidden)`; at most `chunk_tokens` rows of logits exist.

    The logits of a 4,096-token row over 152,064 tokens take 2.5 GB in fp32, three times with their
    gradient. The gradient of the hidden states (and of the head, where it is trained) is made in
    the forward pass, so nothing is computed twice.
    """
    weight, bias = head.weight, getattr(head, "bias", None)
    return _ChunkedLoss.apply(hidden_NH, labels_N, weight, bias, chunk_tokens)


def is_plain_head(model: Any) -> bool:
    """True where logits are a linear layer's output as it is: chunks then equal the whole.

    Not so with adapters on the head, where it is a part of one (RoBERTa, BigBird), where the model
    caps or scales logits after it, and where no decoder stands for itself (Llama 4).
    """
    head, decoder = getattr(model, "lm_head", None), model.get_decoder()
    text = model.config.get_text_config()
    scales = all(getattr(text, name, None) in (None, 1) for name in _SCALES)
    as_it_is = scales and all(getattr(text, name, None) is None for name in _CAPS)
    return type(head) is nn.Linear and decoder not in (None, model, head) and as_it_is


# What models of transformers 5 do to logits in their own forward: Gemma, Granite, Cohere, Falcon,
# Muse, RecurrentGemma, xLSTM (modeling_*.py, read 2026-11-23).
_CAPS: Final = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES: Final = ("logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier")


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        labels_N: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: Any,  # a tensor, or None
        chunk_tokens: int,
    ) -> torch.Tensor:
        # Autocast does not reach into a Function: the product runs in the type it would have used.
        dtype = _autocast_dtype(hidden_NH)
        weight = weight_VH if dtype is None else weight_VH.to(dtype)
        needs_hidden, _, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden_NH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=torch.float32) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=torch.float32) if needs_bias else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_NH.device)
        for start in range(0, hidden_NH.shape[0], chunk_tokens):
            part = slice(start, start + chunk_tokens)
            hidden, labels = hidden_NH[part].to(weight.dtype), labels_N[part]
            logits = hidden @ weight.t()
            if bias_V is not None:
                logits += bias_V.to(logits.dtype)
            logits = logits.float()
            learned = labels != IGNORED
            target = labels.where(learned, 0)[:, None]
            # In place: less the greatest, then softmax, minus one at the label, and nothing where
            # that is ignored. logsumexp would need as much memory again.
            logits -= logits.amax(-1, keepdim=True)
            picked = logits.gather(1, target)[:, 0]
            sums = logits.exp_().sum(-1)
            total += ((sums.log() - picked) * learned).sum()
            gradient = logits.div_(sums[:, None])
            gradient.scatter_add_(1, target, torch.full_like(target, -1, dtype=gradient.dtype))
            gradient *= learned[:, None]
            low = gradient.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = (low @ weight).to(grad_hidden.dtype)
            if grad_weight is not None:
                grad_weight += low.t() @ hidden
            if grad_bias is not None:
                grad_bias += gradient.sum(0)
            del logits, gradient, low  # else they stay until the next chunk has its own
        ctx.save_for_backward(
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None or bias_V is None else grad_bias.to(bias_V.dtype),
        )
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        (scale,) = grad_outputs
        saved = ctx.saved_tensors
        hidden, weight, bias = (x if x is None else x * scale.to(x.dtype) for x in saved)
        return hidden, None, weight, bias, None


def build_model(
    model_dir: Path, config: TrainConfig, *, device: torch.device, empty: bool = False
) -> Any:
    """Return the model ready to train: frozen base with fp32 adapters, or all weights.

    `empty`: without memory for its weights, to be divided between ranks.
    """
    if empty:
        with torch.device("meta"):
            return prepare_model(_blank(model_dir, config, device)[0], config)
    _, options = _shape(model_dir, config, device)
    if config.method == "qlora":
        options |= four_bit_options(options["dtype"])
    return prepare_model(load_model(model_dir, device=device, **options), config)


def build_outline(
    model_dir: Path | None, config: TrainConfig, *, device: torch.device
) -> tuple[Any, dict[str, tuple[Path, str]]] | None:
    """Return the model on the CPU with adapters and buffers; file and tensor of each other weight.

    Those it has not read. None where a weight is not one tensor of a file, under its own name:
    transformers makes it of several (experts), or quantised; or where DoRA takes its norm.
    """
    if model_dir is None or config.task != "causal_lm" or config.lora.dora:
        return None
    stored = stored_tensors(model_dir)
    blank, options = _blank(model_dir, config, device)
    weights = dict(blank.named_parameters())
    if (
        stored.keys() & blank.state_dict().keys() != weights.keys()
        or any(stored[name][1] != weight.shape for name, weight in weights.items())
        or getattr(blank.config, "quantization_config", None) is not None
    ):
        return None
    # A value stands for each weight: it takes no memory, and is known again by its address.
    stand_ins = {k: torch.zeros((), dtype=v.dtype).expand(v.shape) for k, v in weights.items()}
    names = {value.data_ptr(): name for name, value in stand_ins.items()}
    kind, given = type(blank), dict(stand_ins)
    model = kind.from_pretrained(None, config=blank.config, state_dict=given, **options)
    model = prepare_model(model, config)
    addresses = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    read = {name: names[at] for name, at in addresses.items() if at in names}
    if sorted(read.values()) != sorted(weights):  # each, and once
        return None
    return model, {name: (stored[tensor][0], tensor) for name, tensor in read.items()}


def _blank(model_dir: Path, config: TrainConfig, device: torch.device) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    shape, options = _shape(model_dir, config, device)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(shape, **options), options


def _shape(
    model_dir: Path, config: TrainConfig, device: torch.device
) -> tuple[Any, dict[str, Any]]:
    """Return a model's config, which has as many layers as are wanted, and how it is loaded."""
    from transformers import AutoConfig

    shape = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
    refuse_more_layers(config.gradient_checkpointing, shape.get_text_config().num_hidden_layers)
    attention = choose_attention(config, device, shape)
    return shape, {"dtype": base_dtype(config), "attn_implementation": attention}


def prepare_model(model: Any, config: TrainConfig) -> Any:
    """Return a loaded model with adapters and checkpointing of activations, in train mode."""
    model.config.use_cache = False
    if config.fp32_embeddings:
        from peft import prepare_model_for_kbit_training

        # Without its checkpointing, which is set below and needs no input that has a gradient.
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if config.has_adapters:
        model = attach_lora(model, config)
    return recompute(model, config.gradient_checkpointing).train()


def recompute(model: Any, wanted: bool | int | None) -> Any:
    """Return `model`, whose first `wanted` layers compute their activations again; True: all."""
    if not wanted:
        return model
    # transformers 5.17, which the GPU suite may meet, has the older name alone.
    newer = getattr(model, "activation_checkpointing_enable", None)
    (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})
    layers = _recomputable(model)
    refuse_more_layers(wanted, len(layers))
    for layer in layers if wanted is True else layers[wanted:]:
        layer.gradient_checkpointing = wanted is True
    return model


def refuse_more_layers(wanted: bool | int | None, num_layers: int) -> None:
    """Raise ConfigError where more layers are to compute activations again than there are."""
    if wanted is not True and (wanted or 0) > num_layers:
        raise ConfigError(
            f"train.gradient_checkpointing: got {wanted}, but the model has {num_layers} layers; "
            f"expected 0 to {num_layers}; set true for all"
        )


def recomputed_layers(model: nn.Module) -> tuple[int, int]:
    """Return the numbers of layers that compute their activations again, and that could."""
    layers = _recomputable(model)
    return sum(layer.gradient_checkpointing for layer in layers), len(layers)


def _recomputable(model: nn.Module) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]


def base_dtype(config: TrainConfig) -> torch.dtype:
    """Return the type in which the model is loaded: fp32 where all of it is trained."""
    return torch_dtype("fp32" if config.method == "full" else config.dtype)


def low_activations(model: Any, config: TrainConfig) -> Any:
    """Return a model of fp32 weights whose activations stay in 16 bits under autocast.

    Autocast takes matrix products to 16 bits alone: after a norm or an embedding in fp32 each
    linear layer that follows would keep a copy of its own.
    """
    dtype = torch_dtype(config.dtype)

    def cast(module: nn.Module, arguments: Any, output: Any) -> Any:
        return output.to(dtype) if torch.is_tensor(output) else output

    if config.method == "full" and dtype != torch.float32:
        for part in model.modules():
            if part._parameters and not isinstance(part, nn.Linear):
                part.register_forward_hook(cast)
    return model


def num_parameters(model: nn.Module) -> tuple[int, int]:
    """Return (all, trained) numbers of weights; a 4-bit weight counts as one."""
    weights = [*model.parameters()]
    shapes = [getattr(getattr(w, "quant_state", None), "shape", w.shape) for w in weights]
    sizes = [*map(math.prod, shapes)]
    return sum(sizes), sum(n for n, w in zip(sizes, weights, strict=True) if w.requires_grad)


def flops_per_token(model: Any, *, method: str) -> float:
    """Return the useful FLOPs of one trained token: 4N for adapters, 6N for full training.

    N are the weights that multiply every token: the input embedding is a look-up and does not
    count, the output head does. Frozen weights need no weight gradient, which is 2N of the 6N.
    """
    total, trained = num_parameters(model)
    frozen_or_all = total if method == "full" else total - trained
    embedding = None
    with contextlib.suppress(NotImplementedError):  # some models of images have none
        embedding = model.get_input_embeddings()
    is_tied = getattr(model.config, "tie_word_embeddings", False)
    if isinstance(embedding, nn.Embedding) and not is_tied:
        frozen_or_all -= embedding.weight.numel()
    return (6 if method == "full" else 4) * frozen_or_all


class AssistantLoss(nn.Module):
    """Wraps a causal language model; forward gives the loss summed over the batch's label tokens.

    A sum, not a mean: micro batches and ranks hold different numbers of label tokens, and the mean
    of their means weighs tokens unequally.
    """

    def __init__(self, model: Any, *, chunk_tokens: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.chunk_tokens = chunk_tokens

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the summed cross entropy in fp32."""
        arguments = attention_inputs(self.model.config, batch)
        labels_N = batch.labels_BT.flatten()[batch.learned_N]
        base = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
        if self.chunk_tokens is not None and is_plain_head(base):
            hidden_BTH = base.get_decoder()(**arguments, use_cache=False).last_hidden_state
            hidden_NH = hidden_BTH.flatten(0, 1)[batch.learned_N]
            head = base.get_output_embeddings()
            return chunked_loss(hidden_NH, labels_N, head, chunk_tokens=self.chunk_tokens)
        # Logits only where there is a label: on chats that saves most of the output head.
        kept = batch.learned_N
        if len(arguments["input_ids"]) > 1:  # positions of several rows are a mask of them
            kept = torch.zeros_like(arguments["input_ids"], dtype=torch.bool)
            kept.view(-1)[batch.learned_N] = True
        logits = self.model(**arguments, logits_to_keep=kept, use_cache=False).logits
        return summed_loss(logits.flatten(0, -2), labels_N)


class SmallLoss(nn.Module):
    """Wraps a model with `logits`; forward gives the loss summed over the batch's labels.

    Of a detector it is the model's own loss, of each image by itself: transformers would divide by
    the objects of a micro batch, so that a step would depend on how its rows are dealt.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the summed loss in fp32: cross entropy, but for a detector."""
        inputs = dict(batch.inputs)
        if self.model.config.is_encoder_decoder:
            # The decoder sees the target shifted by one; the model makes that from the labels.
            inputs["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(
                batch.labels
            )
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(next(self.model.parameters()).dtype)
        outputs = self.model(**inputs)
        if batch.boxes is not None:
            return self._detection(outputs, batch)
        logits = outputs.logits
        if logits.dim() == 4:  # classes of pixels, of fewer than the image has
            size = batch.labels.shape[-2:]
            logits = interpolate(logits.float(), size, mode="bilinear").movedim(1, -1)
        return summed_loss(logits.reshape(-1, logits.shape[-1]), batch.labels.flatten())

    def _detection(self, outputs: Any, batch: Any) -> torch.Tensor:
        logits, boxes = outputs.logits.float(), outputs.pred_boxes.float()
        total = 0 * (logits.sum() + boxes.sum())
        if not batch.num_label_tokens:
            return total
        for image, classes in enumerate(batch.labels):
            there, own = classes != IGNORED, slice(image, image + 1)
            target = {"class_labels": classes[there], "boxes": batch.boxes[image][there]}
            found = self.model.loss_function(
                logits[own], [target], logits.device, boxes[own], self.model.config
            )
            total = total + found[0]
        return total
