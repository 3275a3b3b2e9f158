"""How long prompts and answers are: distributions, and the chat profile of the stack."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from workloads.common.exit_codes import ConfigError
from workloads.common.recipe import parse, require
from workloads.load.config import Lengths, LoadConfig

PROFILE_VARIABLE = "SOPERATOR_CHAT_PROFILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatProfile:
    """What the stack declares of its reference chat; the job's script brings it as JSON."""

    context_tokens: int
    """Tokens that the model reads before each answer."""
    output_tokens: int
    """Tokens that it writes in the whole chat."""
    turns: int = 1
    cached_share: float = 0.0
    max_answer_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("context_tokens", "output_tokens", "turns"):
            value = getattr(self, name)
            require(value >= 1, f"{name}: got {value}, expected >= 1")


def read_profile(environment: Mapping[str, str] | None = None) -> ChatProfile | None:
    """Return the chat profile that the stack gave this job; None by hand."""
    text = (os.environ if environment is None else environment).get(PROFILE_VARIABLE)
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{PROFILE_VARIABLE}: not JSON: {error}") from error
    return parse(ChatProfile, value, at=PROFILE_VARIABLE)


def with_profile(config: LoadConfig, profile: ChatProfile | None) -> LoadConfig:
    """Return the settings with every gap filled by the profile; a gap without one is refused."""
    prompt, output = config.prompt_tokens, config.output_tokens
    slo, prompts = config.slo, config.prompts
    if profile is not None:
        if prompt.mean is None:
            prompt = replace(prompt, mean=profile.context_tokens)
        if output.mean is None:
            output = replace(output, mean=max(1, round(profile.output_tokens / profile.turns)))
        if slo.e2e_s is None and profile.max_answer_s is not None:
            slo = replace(slo, e2e_s=profile.max_answer_s)
        if prompts.cached_share is None and profile.cached_share < 1:
            prompts = replace(prompts, cached_share=profile.cached_share)
    missing = [
        name
        for name, lengths in (("prompt_tokens", prompt), ("output_tokens", output))
        if lengths.mean is None and not (name == "prompt_tokens" and prompts.rows)
    ]
    if missing:
        raise ConfigError(
            f"load.{' and load.'.join(missing)}: no mean, and no chat profile of a stack "
            f"({PROFILE_VARIABLE}); set load.{missing[0]}.mean"
        )
    return replace(config, prompt_tokens=prompt, output_tokens=output, slo=slo, prompts=prompts)


def draw_lengths(lengths: Lengths, count: int, seed: str) -> list[int]:
    """Return `count` lengths in tokens, the same for the same seed."""
    assert lengths.mean is not None
    draw = random.Random(f"lengths {seed}")
    mean, most = lengths.mean, lengths.most or 4 * lengths.mean
    if lengths.distribution == "fixed":
        return [min(mean, most)] * count
    if lengths.distribution == "uniform":
        half = mean * lengths.spread * math.sqrt(3)
        drawn = (draw.uniform(mean - half, mean + half) for _ in range(count))
    else:
        variance = math.log1p(lengths.spread**2)
        middle = math.log(mean) - variance / 2
        drawn = (draw.lognormvariate(middle, math.sqrt(variance)) for _ in range(count))
    return [min(most, max(1, round(value))) for value in drawn]
