"""Settings of the `serve` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated, Literal

from workloads.recipes.reader import (
    AtLeastOne,
    Bound,
    NotNegative,
    Positive,
    Settings,
    require,
)

AUTO = "auto"
MAX_TOP_LOGPROBS = 20
"""OpenAI's limit; https://platform.openai.com/docs/api-reference/chat/create (2026-11-21)."""
# Words of apply_chat_template itself (transformers 5.23): with one of them a client would bring its
# own template, which is a program, or change what comes back.
_NOT_OF_A_TEMPLATE = frozenset({
    "conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
    "tokenize", "continue_final_message", "sanitize_control_tokens", "padding", "truncation",
    "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs"
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Settings):
    """What one client may ask for and how much is held at once."""

    context_tokens: AtLeastOne[int] = 8192
    """Prompt and answer together; also the length of a row of the KV cache."""
    max_output_tokens: AtLeastOne[int] = 4096
    """Most tokens of one answer, and what an answer gets that names no number."""
    max_concurrency: AtLeastOne[int] = 16
    """Rows of the KV cache: answers that are written at the same time."""
    max_queue: NotNegative[int] = 64
    """Requests that wait for a row; one more is answered 429."""
    max_choices: AtLeastOne[int] = 8
    """Most answers to one request (`n`)."""
    max_body_bytes: AtLeastOne[int] = 2**20
    body_timeout_s: AtLeastOne[float] = 30.0
    """A client that has not sent its whole request by then is answered 408."""
    request_timeout_s: AtLeastOne[float] = 600.0
    """From the request to the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig(Settings):
    """One server: it serves the recipe's model, or at most one of three folders."""

    adapter: str | None = None
    """LoRA adapter of the recipe's model, or a pointer file to it: base and tuned. AUTO: that of
    the newest evaluation that passed (`<chkpt>/evaluated`); the base alone where there is none."""
    merged: str | None = None
    """Folder of a whole model, served instead of the recipe's."""
    checkpoint: str | None = None
    """`final`, an adapter, or `checkpoint-N` of a run, written by any number of ranks."""
    served_name: str | None = None
    """Name of the model in the API; None: the name of its folder."""
    tuned_name: str | None = None
    """Name of the tuned model; None: the served name with `-tuned`."""
    engine: Literal["auto", "transformers", "vllm"] = "auto"
    """auto: vLLM where it can be imported and a GPU is there, else transformers."""
    gpus: AtLeastOne[int] = 1
    """GPUs of the node that one model is divided over (vLLM's tensor parallelism)."""
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    host: str = "127.0.0.1"
    port: Annotated[int, Bound("0 to 65535", lambda value: 0 <= value <= 65535)] = 7860
    """0: any free port; endpoint.json says which."""
    api_key_file: str | None = None
    """File of mode 0600 with the key; made when missing. None: one of this run's results."""
    thinking: bool = True
    """Whether the chat template may open a thinking block (Qwen3's `enable_thinking`)."""
    template_options: tuple[str, ...] = ("enable_thinking",)
    """What a request's `chat_template_kwargs` may tell the model's chat template."""
    stage: Literal["auto", "never"] = "auto"
    """auto: weights go to the place `scratch` first where that is a RAM disk with room."""
    compare_cold_start: bool = False
    """Whether the weights are loaded a second time, without the RAM disk, to measure the gain."""
    prefill_tokens: Positive[int] = 512
    """Prompt tokens read between two decode steps: the longest that a running answer waits."""
    drain_s: NotNegative[float] = 20.0
    """Time of running answers after SIGTERM; KillWait is 30 s by default, 180 on Soperator."""
    seed: int = 0
    """Of answers that are sampled and name no seed."""
    cpu_threads: int | None = None
    """torch's threads; None leaves torch's choice."""
    limits: Limits = field(default_factory=Limits)

    def _check(self) -> None:
        folders = {name: getattr(self, name) for name in ("adapter", "merged", "checkpoint")}
        given = [name for name, value in folders.items() if value and value != AUTO]
        require(
            len(given) < 2,
            f"{' and '.join(given)}: at most one of adapter, merged and checkpoint says what is "
            "served beside or instead of the model",
        )
        require(
            self.gpus == 1 or self.engine != "transformers",
            f"gpus: got {self.gpus}, but the transformers engine has its model on one GPU; set "
            "engine to vllm, or start a server for each GPU",
        )
        own = sorted(_NOT_OF_A_TEMPLATE.intersection(self.template_options))
        require(
            not own,
            f"template_options: got {', '.join(own)}, expected names that the model's template "
            "reads, such as enable_thinking",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it: localhost or a loopback address, and no other name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
