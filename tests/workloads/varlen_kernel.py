"""A CPU kernel for torch's attention over packed rows, which brings kernels for GPUs alone.

The operator, its autograd formula, what that saves for the backward pass and its shapes while
compiling stay torch's own. Beyond them it takes fp32, so that a comparison can be exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import varlen

from workloads.train import model as train_model


def register() -> None:
    """Make torch.nn.attention.varlen run on a CPU in this process."""
    varlen._varlen_attn.register_kernel("cpu")(_forward)
    varlen._varlen_attn_backward.register_kernel("cpu")(_backward)


def as_on_a_gpu(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have the trainer take the kernel here wherever it would on an H100: not in fp32."""
    register()
    asked, gpu = train_model.varlen_problem, torch.device("cuda")
    put(torch.cuda, "get_device_capability", lambda _: (9, 0))
    put(train_model, "varlen_problem", lambda config, _: asked(config, gpu))


def _documents(ends: torch.Tensor, longest: int) -> Iterator[slice]:
    assert ends.dtype == torch.int32
    bounds = ends.tolist()
    for start, end in itertools.pairwise(bounds):
        assert end - start <= longest, "a GPU's kernel would leave the rest of the document out"
        yield slice(start, end)


def _scores(query: torch.Tensor, key: torch.Tensor, scale: float, window: Any) -> torch.Tensor:
    """Returns what each query of a document gives to each key, heads first; -inf for nothing."""
    back = torch.arange(len(query))[:, None] - torch.arange(len(key))
    left, right = window
    hidden = (back < -right) | (back > (len(key) if left < 0 else left))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    return scores.masked_fill(hidden, -math.inf)


def _for_each_query_head(state: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return state.float().repeat_interleave(query.shape[1] // state.shape[1], 1)


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ends: torch.Tensor,
    ends_of_keys: torch.Tensor,
    longest: int,
    longest_of_keys: int,
    is_causal: bool = False,
    scale: float | None = None,
    window: Any = None,
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del ends_of_keys, longest_of_keys, is_causal
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    keys, values = (_for_each_query_head(each, query) for each in (key, value))
    output, sums = torch.empty_like(query), query.new_empty(query.shape[1::-1], dtype=torch.float)
    for each in _documents(ends, longest):
        scores = _scores(query[each].float(), keys[each], scale, window)
        weighed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values[each])
        output[each], sums[:, each] = weighed.to(query.dtype), scores.logsumexp(-1)
    return output, sums, torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    sums: torch.Tensor,
    ends: torch.Tensor,
    ends_of_keys: torch.Tensor,
    longest: int,
    longest_of_keys: int,
    is_causal: bool,
    seeds: torch.Tensor,
    scale: float | None = None,
    window: Any = None,
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del output, ends_of_keys, longest_of_keys, is_causal, seeds
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    keys, values = (_for_each_query_head(each, query) for each in (key, value))
    grads = [torch.empty(query.shape), torch.empty(query.shape), torch.empty(query.shape)]
    for each in _documents(ends, longest):
        own = query[each].float(), grad[each].float()
        shares = (_scores(own[0], keys[each], scale, window) - sums[:, each, None]).exp()
        inner = torch.einsum("qhd,khd->hqk", own[1], values[each])
        inner = shares * (inner - (shares * inner).sum(-1, keepdim=True))
        grads[0][each] = torch.einsum("hqk,khd->qhd", inner, keys[each]) * scale
        grads[1][each] = torch.einsum("hqk,qhd->khd", inner, own[0]) * scale
        grads[2][each] = torch.einsum("hqk,qhd->khd", shares, own[1])
    shared = [each.unflatten(1, (key.shape[1], -1)).sum(2).to(key.dtype) for each in grads[1:]]
    return grads[0].to(query.dtype), shared[0], shared[1]
