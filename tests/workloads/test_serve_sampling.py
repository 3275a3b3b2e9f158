"""Settings that vLLM's clients know, against transformers' own processors of the same names."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.workloads.serve_stand import Collected, asking, scripted_engine, serving
from workloads.serve import sampling
from workloads.serve.sampling import RowSampler
from workloads.serve.scheduler import Sampling

LOGITS = torch.tensor([[2.0, 1.5, 0.5, -0.5, -3.0]])


def test_min_p_keeps_what_transformers_keeps() -> None:
    for min_p, temperature in ((0.5, 1.0), (0.2, 1.0), (0.2, 2.0), (1.0, 1.0)):
        rows = [
            RowSampler(Sampling(seed=seed, min_p=min_p, temperature=temperature))
            for seed in range(400)
        ]
        drawn = set(sampling.sample(LOGITS.expand(400, -1), rows))
        ids: Any = torch.zeros(1, 0, dtype=torch.long)
        kept = MinPLogitsWarper(min_p)(ids, LOGITS / temperature)[0]
        assert drawn == set(torch.isfinite(kept).nonzero()[:, 0].tolist())


def drawn_shares(logits: torch.Tensor, count: int, **settings: Any) -> torch.Tensor:
    """Share of each token among draws by numbers that lie evenly between 0 and 1."""
    rows = [RowSampler(Sampling(**settings)) for _ in range(count)]
    for number, row in enumerate(rows):
        row.number = (number + 0.5) / count
    tokens: Any = sampling.sample(logits.expand(count, -1), rows)
    return torch.bincount(torch.tensor(tokens), minlength=len(logits)) / count


@pytest.mark.parametrize(("min_p", "seed"), [(0.0, 0), (0.0, 1), (0.1, 2)])
def test_top_p_is_a_share_of_what_top_k_leaves_as_in_transformers(min_p: float, seed: int) -> None:
    """It was one of all tokens: of 300 settings 46 drew others, as 0.6 to 0.4 instead of one."""
    logits = 2 * torch.randn(12, generator=torch.Generator().manual_seed(seed))
    no_ids: Any = torch.zeros(1, 0, dtype=torch.long)
    for top_k in (0, 1, 2, 5, 12, 40):
        for top_p in (0.3, 0.5, 0.8, 0.95, 1.0):
            keeps = LogitsProcessorList([TopPLogitsWarper(top_p)])
            if top_k:
                keeps.insert(0, TopKLogitsWarper(top_k))
            if min_p:
                keeps.insert(0, MinPLogitsWarper(min_p))
            expected = keeps(no_ids, logits[None].clone()).softmax(-1)[0]
            found = drawn_shares(logits, 1000, top_k=top_k, top_p=top_p, min_p=min_p)
            torch.testing.assert_close(found, expected, rtol=0, atol=0.003)


def test_equal_logits_at_the_last_place_of_a_large_top_k_have_one_order() -> None:
    """A neighbour with a larger top_k had more tokens looked at, and others of them came first."""
    steps = torch.randint(0, 12, (4000,), generator=torch.Generator().manual_seed(0))
    logits = steps.float() / 8
    wanted = {"top_k": 300, "temperature": 0.5}
    alone = [RowSampler(Sampling(seed=seed, **wanted)) for seed in range(200)]
    beside = [RowSampler(Sampling(seed=seed, **wanted)) for seed in range(200)]
    others = RowSampler(Sampling(top_k=700))
    drawn = sampling.sample(logits.expand(200, -1), alone)
    assert drawn == sampling.sample(logits.expand(201, -1), [*beside, others])[:200]
    kept = logits.sort(descending=True, stable=True).indices[:300].tolist()
    assert set(drawn) <= set(kept)


def test_min_p_of_one_row_leaves_the_others_alone() -> None:
    rows = [RowSampler(Sampling(seed=seed, min_p=(seed % 2) * 1.0)) for seed in range(400)]
    drawn = sampling.sample(LOGITS.expand(400, -1), rows)
    assert set(drawn[1::2]) == {0}
    assert set(drawn[::2]) >= {0, 1, 2}


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_a_repetition_penalty_is_that_of_transformers_for_prompt_and_answer(
    penalty: float,
) -> None:
    row = RowSampler(Sampling(temperature=0, repetition_penalty=penalty), prompt_ids=[0, 4])
    row.wrote(1)
    row.wrote(1)
    mine = LOGITS[0].clone()
    row.adjust(mine)
    seen: Any = torch.tensor([[0, 4, 1, 1]])
    torch.testing.assert_close(
        mine, RepetitionPenaltyLogitsProcessor(penalty)(seen, LOGITS.clone())[0]
    )


def answer(tokenizer: Any, script: list[int], max_tokens: int = 8, **options: Any) -> Collected:
    """The answer of a model that says the script; an end that is not allowed is a zero token."""
    engine, _ = scripted_engine(tokenizer, lambda _: script)
    engine.start()
    sink = Collected()
    engine.submit([(asking([1], max_tokens, **options), sink)])
    assert sink.text is not None
    engine.stop(0)
    return sink


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_stop_token_ends_an_answer_and_is_no_text_even_where_the_end_is_ignored(
    tokenizer: Any,
) -> None:
    script = ids_of(tokenizer, "hi!more")
    stops = Sampling(temperature=0, stop_token_ids=(script[2],))
    for ignore_eos in (False, True):
        sink = answer(tokenizer, script, sampling=stops, ignore_eos=ignore_eos)
        assert (sink.text, sink.last.finish) == ("hi", "stop")


def test_no_stop_ends_an_answer_before_its_least_length(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    early = [*ids_of(tokenizer, "hi"), end, end, *ids_of(tokenizer, "yo"), end]
    sink = answer(tokenizer, early, sampling=Sampling(temperature=0, min_tokens=5))
    assert sink.text.startswith("hi")
    assert sink.text.endswith("yo")
    assert sum(delta.num_tokens for delta in sink.deltas) == 7
    assert sink.last.finish == "stop"
    words = ids_of(tokenizer, "aXbXcX")
    for least, told in ((0, "a"), (1, "a"), (2, "aXb"), (4, "aXbXc")):
        wanted = Sampling(temperature=0, min_tokens=least)
        assert answer(tokenizer, words, stop=("X",), sampling=wanted).text == told


def test_usage_so_far_is_in_every_chunk_where_it_is_asked_for(tokenizer: Any) -> None:
    script = [*ids_of(tokenizer, "hello"), tokenizer.eos_token_id]
    engine, _ = scripted_engine(tokenizer, lambda _: script)
    with serving(engine, tokenizer) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)

        def usages(**more: bool) -> list[int | None]:
            parts = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "a"}],
                stream=True,
                stream_options={"include_usage": True, **more},  # type: ignore[arg-type]
                extra_body={
                    "min_p": 0.1,
                    "repetition_penalty": 1.0,
                    "min_tokens": 2,
                    "stop_token_ids": [3],
                },
            )
            return [part.usage and part.usage.completion_tokens for part in parts]

        so_far = usages(continuous_usage_stats=True)
        assert so_far == sorted(so_far)
        assert (so_far[0], so_far[1], so_far[-1]) == (0, 1, 6)
        assert set(usages()) == {None, 6}
        for name, value in (
            ("min_p", 1.5),
            ("repetition_penalty", 0),
            ("min_tokens", -1),
            ("stop_token_ids", [True]),
            ("reasoning_effort", "low"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": "a"}],
                    extra_body={name: value},
                )
            assert caught.value.param == name
