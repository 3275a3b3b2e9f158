"""The engine over real weights: what continuous batching must not change about an answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workloads.serve_stand import Collected, asking, real_engine, scripted_engine
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.models import load_model, load_tokenizer
from workloads.evaluate.subject import load_tuned
from workloads.serve import engine as row_parts
from workloads.serve import sampling
from workloads.serve.engine import RowCache, TransformersEngine, batches
from workloads.serve.sampling import RowSampler
from workloads.serve.scheduler import ApiError, Generation, Sampling
from workloads.serve.text import TextStream

SMOLLM2 = Path.home() / ".cache/soperator-stack/models/SmolLM2-135M-Instruct"
CPU = torch.device("cpu")
PROMPTS = ["a", "bc" * 20, "hello", "the longest of all prompts here, by far: " * 3, "x y z"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Passes of tests are small: threads that wait for a busy core make them slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def engine_of(
    model: Any, tokenizer: Any, rows: row_parts.AdapterRows | None = None, **limits: int
) -> Iterator[TransformersEngine]:
    """A started engine over `model`."""
    engine = real_engine(model, tokenizer, rows, **limits)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(0)


def answer_all(engine: TransformersEngine, asked: Sequence[Generation]) -> list[Collected]:
    """Submit all at once; return their answers, which have ended."""
    sinks = [Collected() for _ in asked]
    engine.submit(list(zip(asked, sinks, strict=True)))
    for sink in sinks:
        assert sink.text is not None
    return sinks


def generate(model: Any, tokenizer: Any, prompt_ids: Sequence[int], max_tokens: int) -> str:
    """transformers' own greedy answer to one prompt alone."""
    made = model.generate(
        torch.tensor([list(prompt_ids)]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    # What the limit cut inside a character is no text.
    return tokenizer.decode(made[0, len(prompt_ids) :], skip_special_tokens=True).rstrip("\ufffd")


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def adapter_dir(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    """An adapter of the tiny model whose weights are far from nothing."""
    import peft

    torch.manual_seed(1)
    base = load_model(model_dir, dtype=torch.float32, device=CPU)
    config = peft.LoraConfig(
        r=4,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    tuned = peft.get_peft_model(base, config)
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    folder = tmp_path_factory.mktemp("adapter")
    tuned.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("prefill_tokens", [3, 1000])
def test_batched_answers_are_those_of_one_prompt_alone(
    model: Any, tokenizer: Any, prefill_tokens: int
) -> None:
    prompts = [ids_of(tokenizer, text) for text in PROMPTS]
    asked = [asking(ids, 5 + 4 * index) for index, ids in enumerate(prompts)]
    with engine_of(model, tokenizer, prefill_tokens=prefill_tokens) as engine:
        sinks = answer_all(engine, asked)
    expected = [generate(model, tokenizer, each.prompt_ids, each.max_tokens) for each in asked]
    assert [sink.text for sink in sinks] == expected


def test_an_answer_that_ends_with_its_prompt_exchanges_no_tokens_of_others(
    model: Any, tokenizer: Any
) -> None:
    """It ended in a row before two that decode: the last one took its place in that very turn."""
    brief, *longer = (ids_of(tokenizer, text)[:1] for text in ("s", "a", "x"))
    endings = ids_of(tokenizer, "the longest of all prompts here, by far")
    asked = [asking(brief, 3), *(asking(ids, 40) for ids in longer), asking(endings, 1)]
    asked = [replace(each, ignore_eos=True) for each in asked]
    with engine_of(model, tokenizer, num_rows=4, prefill_tokens=3) as engine:
        together = [sink.text for sink in answer_all(engine, asked)]
        alone = [answer_all(engine, [replace(each)])[0].text for each in asked]
    assert together == alone


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="`make setup` brings SmolLM2-135M-Instruct")
def test_batched_answers_of_a_real_model_are_those_of_generate() -> None:
    tokenizer = load_tokenizer(SMOLLM2)
    model = load_model(SMOLLM2, dtype=torch.float32, device=CPU)
    questions = ["What is the capital of France?", "Count to five.", "Write a haiku about rain."]
    prompts = [
        ids_of(
            tokenizer,
            tokenizer.apply_chat_template(
                [{"role": "user", "content": each}], tokenize=False, add_generation_prompt=True
            ),
        )
        for each in questions
    ]
    asked = [asking(ids, 12) for ids in prompts]
    with engine_of(model, tokenizer, num_rows=2, prefill_tokens=24) as engine:
        sinks = answer_all(engine, asked)
    assert [sink.text for sink in sinks] == [generate(model, tokenizer, ids, 12) for ids in prompts]
    assert "Paris" in sinks[0].text


@pytest.mark.feature("S000-06", "S000-53", "S000-55")
def test_base_and_tuned_answer_in_one_batch_each_as_if_alone(
    model_dir: Path, tokenizer: Any, adapter_dir: Path
) -> None:
    base = load_model(model_dir, dtype=torch.float32, device=CPU)
    # Merged weights are the same numbers in another order of sums: the reference is fp32.
    merged = load_tuned(model_dir, adapter_dir, dtype=torch.float32, device=CPU)
    prompts = [ids_of(tokenizer, text) for text in PROMPTS for _ in range(2)]
    asked = [asking(ids, 10, is_tuned=index % 2 == 1) for index, ids in enumerate(prompts)]
    expected = [
        generate(merged if each.is_tuned else base, tokenizer, each.prompt_ids, 10)
        for each in asked
    ]
    served, rows = row_parts.attach_adapter(
        load_model(model_dir, dtype=torch.float32, device=CPU), adapter_dir
    )
    with engine_of(served, tokenizer, rows, num_rows=5) as engine:
        texts = [sink.text for sink in answer_all(engine, asked)]
        alone = [answer_all(engine, [asking(each.prompt_ids, 10, is_tuned=True)]) for each in asked]
    assert texts == expected
    assert texts[0::2] != texts[1::2], "the adapter changes nothing"
    assert [sinks[0].text for sinks in alone][1::2] == expected[1::2]


def test_an_adapter_that_cannot_share_a_batch_is_refused(
    tmp_path: Path, model_dir: Path, model: Any
) -> None:
    import peft

    config = peft.IA3Config(
        target_modules=["q_proj"], feedforward_modules=[], task_type="CAUSAL_LM"
    )
    peft.get_peft_model(model, config).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="IA3 cannot answer beside its base in one batch; merge"):
        row_parts.attach_adapter(load_model(model_dir, dtype=torch.float32, device=CPU), tmp_path)


def test_an_adapter_of_another_shape_is_refused(
    tmp_path: Path, model_dir: Path, adapter_dir: Path
) -> None:
    from safetensors.torch import load_file, save_file

    for path in adapter_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "adapter_model.safetensors")
    save_file(
        {name: torch.cat([each, each], dim=-1) for name, each in weights.items()},
        tmp_path / "adapter_model.safetensors",
    )
    with pytest.raises(DataError, match="size mismatch"):
        row_parts.attach_adapter(load_model(model_dir, dtype=torch.float32, device=CPU), tmp_path)


@pytest.mark.feature("S000-12")
def test_a_seed_gives_the_same_answer_again_and_another_seed_another(
    model: Any, tokenizer: Any
) -> None:
    ids = ids_of(tokenizer, "once upon")

    def asked(seed: int) -> Generation:
        return asking(ids, 12, sampling=Sampling(temperature=1.0, top_p=0.9, seed=seed))

    with engine_of(model, tokenizer) as engine:
        sinks = answer_all(engine, [asked(1), asked(1), asked(2)])
    assert sinks[0].text == sinks[1].text != sinks[2].text


def test_log_probabilities_are_those_of_the_model(model: Any, tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "hello")
    with engine_of(model, tokenizer) as engine:
        sink = answer_all(engine, [asking(ids, 3, num_logprobs=4, ignore_eos=True)])[0]
    entries = [entry for delta in sink.deltas for entry in delta.logprobs]
    made = [delta for delta in sink.deltas if delta.num_tokens]
    assert len(entries) == len(made) == 3
    logits = model(torch.tensor([ids])).logits[0, -1].detach()
    expected = torch.log_softmax(logits.float(), -1)
    assert entries[0].logprob == pytest.approx(float(expected.max()), abs=1e-4)
    assert len(entries[0].top) == 4
    assert entries[0].top[0][:1] == (entries[0].token,)
    values = [value for _, value in entries[0].top]
    assert values == sorted(values, reverse=True)


def test_a_stop_string_across_tokens_ends_the_answer_and_is_not_told(tokenizer: Any) -> None:
    script = ids_of(tokenizer, "one, two, STOP three")
    engine, _ = scripted_engine(tokenizer, lambda asked: script)
    engine.start()
    sink = answer_all(engine, [asking([1], 20, stop=("STOP", "never"))])[0]
    engine.stop(0)
    assert sink.text == "one, two, "
    assert sink.last.finish == "stop"
    told = "".join(delta.text for delta in sink.deltas[: len("one, two,")])
    assert told.startswith("one, two"), "what is no stop string is told at once"


def test_a_character_of_several_tokens_is_told_when_it_is_whole(tokenizer: Any) -> None:
    stream = TextStream(tokenizer, ())
    ids = ids_of(tokenizer, "a\u20acb")
    assert [stream.push(each) for each in ids] == ["a", "", "", "\u20ac", "b"]
    cut = TextStream(tokenizer, ())
    assert [cut.push(each) for each in ids[:3]] == ["a", "", ""]
    assert cut.finish() == "", "half a character is none"


def test_an_end_that_may_become_a_stop_string_is_told_at_the_end(tokenizer: Any) -> None:
    stream = TextStream(tokenizer, ("END",))
    told = "".join(stream.push(each) for each in ids_of(tokenizer, "the EN"))
    assert told == "the "
    assert stream.finish() == "EN"


def test_an_answer_ends_at_the_model_s_end_of_turn(tokenizer: Any) -> None:
    script = [*ids_of(tokenizer, "hi"), tokenizer.eos_token_id, 70]
    engine, _ = scripted_engine(tokenizer, lambda asked: script)
    engine.start()
    ended, ignored = answer_all(engine, [asking([1], 6), asking([1], 6, ignore_eos=True)])
    engine.stop(0)
    assert (ended.text, ended.last.finish) == ("hi", "stop")
    assert sum(delta.num_tokens for delta in ignored.deltas) == 6
    assert ignored.last.finish == "length"


def test_a_client_that_goes_away_frees_its_row_in_the_next_turn(tokenizer: Any) -> None:
    engine, passes = scripted_engine(tokenizer, lambda asked: [65], num_rows=1)
    going, waiting = Collected(), Collected()
    first = asking([1, 2], 10**6, ignore_eos=True)
    engine.start()
    engine.submit([(first, going)])
    assert going.first.wait(30)
    engine.submit([(asking([3], 2, ignore_eos=True), waiting)])
    engine.cancel(first.number)
    assert waiting.text == tokenizer.decode([65, 65])
    told = len(going.deltas)
    assert engine.stop(5) == 0
    assert len(going.deltas) == told, "nothing is told after the row is free"
    assert engine.load().num_running == 0
    assert passes.batches[-1] == 1


def test_out_of_memory_ends_the_youngest_request_and_the_others_go_on(tokenizer: Any) -> None:
    engine, passes = scripted_engine(tokenizer, lambda asked: [65])
    old, young = Collected(), Collected()
    failing = threading.Event()

    def gate() -> None:
        if failing.is_set():
            failing.clear()
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")

    passes.gate = gate
    engine.submit([(asking([1], 20), old), (asking([2], 20), young)])
    failing.set()
    engine.start()
    assert len(old.text) == 20
    assert young.last.failure is not None
    assert young.last.failure.code == "out_of_memory"
    engine.stop(0)


def test_an_error_of_a_pass_ends_its_requests_and_the_engine_goes_on(tokenizer: Any) -> None:
    engine, passes = scripted_engine(tokenizer, lambda asked: [65])
    broken = [True]

    def gate() -> None:
        if broken.pop() if broken else False:
            raise ValueError("a shape that does not fit")

    passes.gate = gate
    engine.start()
    first = answer_all(engine, [asking([1], 3)])[0]
    assert first.last.failure is not None
    assert "a shape that does not fit" in first.last.failure.message
    assert answer_all(engine, [asking([1], 3)])[0].last.finish == "length"
    engine.stop(0)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_of_one_answer_leaves_those_of_its_batch_as_they_are_alone(
    model: Any, tokenizer: Any, penalty: str
) -> None:
    plain = [asking(ids_of(tokenizer, text), 8, ignore_eos=True) for text in PROMPTS[:2]]
    settings: dict[str, Any] = {"temperature": 0, penalty: 2.0}
    with engine_of(model, tokenizer) as engine:
        alone = [answer_all(engine, [each])[0].text for each in plain]
        punished = asking(
            plain[0].prompt_ids, 8, ignore_eos=True, sampling=Sampling(**settings), num_logprobs=0
        )
        first, second, third = answer_all(engine, [punished, *again(plain)])
    assert first.last.finish == "length"
    assert first.text != alone[0], "the penalty changes nothing"
    assert [second.text, third.text] == alone


def again(asked: Sequence[Generation]) -> list[Generation]:
    """The same questions as new requests."""
    return [asking(each.prompt_ids, each.max_tokens, ignore_eos=True) for each in asked]


def break_one_row(kind: str, patch: pytest.MonkeyPatch, tokenizer: Any) -> dict[str, Any]:
    """Let one step of writing an answer fail; return the settings of the request that needs it."""
    broken = "a fault of one row"

    def fail(*_: Any) -> Any:
        raise ValueError(broken)

    if kind == "penalty":
        patch.setattr(RowSampler, "adjust", fail)
        return {"sampling": Sampling(temperature=0, presence_penalty=1.0)}
    if kind == "random number":
        # The number is an attribute: it may be set, and cannot be read.
        patch.setattr(RowSampler, "number", property(fail, lambda *_: None), raising=False)
        return {"sampling": Sampling(temperature=1.0)}
    if kind == "log probability":
        patch.setattr(sampling, "logprobs", fail)
        return {"num_logprobs": 2}
    push = TextStream.push

    def push_or_fail(stream: TextStream, token: int) -> str:
        return fail() if stream._stop else push(stream, token)

    patch.setattr(TextStream, "push", push_or_fail)
    return {"stop": ("never",)}


@pytest.mark.parametrize("kind", ["penalty", "random number", "log probability", "text"])
def test_a_fault_of_one_answer_ends_that_answer_only(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    plain = [asking(ids_of(tokenizer, text), 8, ignore_eos=True) for text in PROMPTS[:2]]
    # All in one pass: one that fails as a whole ends its own requests in any case.
    with engine_of(model, tokenizer, prefill_tokens=1000) as engine:
        alone = [answer_all(engine, [each])[0].text for each in plain]
        faulty = asking(
            plain[1].prompt_ids, 8, **break_one_row(kind, monkeypatch, tokenizer), ignore_eos=True
        )
        first, broken, last = again(plain)[0], faulty, again(plain)[1]
        told = answer_all(engine, [first, broken, last])
    assert [told[0].text, told[2].text] == alone
    failure = told[1].last.failure
    assert failure is not None
    assert (failure.code, "a fault of one row" in failure.message) == ("engine_error", True)


def test_a_reader_that_fails_ends_its_own_answer_only(model: Any, tokenizer: Any) -> None:
    asked = asking(ids_of(tokenizer, "hello"), 8, ignore_eos=True)
    told: list[Any] = []

    def gone(delta: Any) -> None:
        told.append(delta)
        raise RuntimeError("the reader is gone")

    with engine_of(model, tokenizer) as engine:
        alone = answer_all(engine, [asked])[0].text
        other = Collected()
        engine.submit([(again([asked])[0], gone), (again([asked])[0], other)])
        assert other.text == alone
        assert engine.load().num_running == 0
    assert told[-1].failure is not None


def test_a_pass_that_is_made_again_after_out_of_memory_changes_no_answer(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that were never chosen counted as read: the next pass read the last one twice."""
    plain = [asking(ids_of(tokenizer, text), 8, ignore_eos=True) for text in PROMPTS[:2]]
    sample, calls = sampling.sample, []

    def full(*given: Any) -> Any:
        calls.append(len(calls))
        if calls[-1] in (0, 4):
            raise MemoryError
        return sample(*given)

    with engine_of(model, tokenizer, num_rows=4, prefill_tokens=1000) as engine:
        alone = [answer_all(engine, [each])[0].text for each in plain]
        monkeypatch.setattr(sampling, "sample", full)
        told = answer_all(engine, [*again(plain), *again(plain)])
    assert [each.text for each in told[:2]] == alone
    assert [each.last.failure and each.last.failure.code for each in told[2:]] == [
        "out_of_memory"
    ] * 2


def test_a_lost_device_ends_everything_and_says_so(tokenizer: Any) -> None:
    lost: list[BaseException] = []
    engine, passes = scripted_engine(tokenizer, lambda asked: [65])
    engine.on_lost = lost.append

    class AcceleratorError(RuntimeError):
        pass

    def gate() -> None:
        raise AcceleratorError("CUDA error: unspecified launch failure")

    passes.gate = gate
    engine.start()
    sink = answer_all(engine, [asking([1], 3)])[0]
    assert sink.last.failure is not None
    engine.stop(0)
    assert isinstance(lost[0], AcceleratorError)
    with pytest.raises(ApiError):
        engine.submit([(asking([1]), Collected())])


def test_a_stop_returns_who_waits_and_lets_end_what_runs(tokenizer: Any) -> None:
    engine, passes = scripted_engine(tokenizer, lambda asked: [65], num_rows=1)
    may_go_on = threading.Event()
    passes.gate = lambda: assert_(may_go_on.wait(30))
    running, waiting = Collected(), Collected()
    engine.submit([(asking([1], 5), running), (asking([2], 5), waiting)])
    engine.start()
    stopping = threading.Thread(target=lambda: unfinished.append(engine.stop(30)))
    unfinished: list[int] = []
    with engine._changed:
        engine._changed.wait_for(lambda: engine._scheduler.running, timeout=0.1)
    stopping.start()
    assert waiting.last.failure is not None
    assert waiting.last.failure.code == "server_stopping"
    may_go_on.set()
    stopping.join()
    assert running.last.finish == "length"
    assert unfinished == [0]


def assert_(condition: bool) -> None:
    assert condition


def test_what_does_not_end_in_time_is_returned_and_counted(tokenizer: Any) -> None:
    engine, _ = scripted_engine(tokenizer, lambda asked: [65])
    endless = Collected()
    engine.submit([(asking([1], 10**9, ignore_eos=True), endless)])
    engine.start()
    assert endless.first.wait(30)
    assert engine.stop(0) == 1
    assert endless.last.failure is not None


def test_sampling_follows_top_k_top_p_and_penalties() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))

    def drawn(**settings: Any) -> set[int]:
        rows = [RowSampler(Sampling(seed=seed, **settings)) for seed in range(300)]
        return set(sampling.sample(logits.expand(len(rows), -1), rows))

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.6) == {0, 1}
    assert drawn(top_p=0.0) == {0}
    assert drawn(temperature=0.01) == {0}
    row = RowSampler(Sampling(temperature=0, presence_penalty=1.0))
    first = sampling.sample(logits, [row])[0]
    row.wrote(0)
    assert (first, sampling.sample(logits, [row])[0]) == (0, 1), "what was written counts less"


def test_what_a_neighbour_asks_for_changes_no_token_of_a_seed() -> None:
    torch.manual_seed(0)
    limits: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.05}]
    limits += [{"top_k": 1000}, {"top_p": 0.99, "temperature": 2.0}]
    asked = [Sampling(seed=seed, **limits[seed % len(limits)]) for seed in range(240)]
    # Many are equal, as a model's in bf16 are.
    logits = (2 * torch.randn(240, 5000)).bfloat16().float()
    alone = [
        sampling.sample(logits[row : row + 1], [RowSampler(each)])[0]
        for row, each in enumerate(asked)
    ]
    assert sampling.sample(logits, [RowSampler(each) for each in asked]) == alone
    few = [row for row, each in enumerate(asked) if each.top_k in (0, 5) and each.temperature < 2]
    beside = sampling.sample(logits[few], [RowSampler(asked[row]) for row in few])
    assert beside == [alone[row] for row in few]


def test_drawn_shares_are_the_model_s_probabilities() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).expand(6000, -1)
    rows = [RowSampler(Sampling(seed=seed)) for seed in range(6000)]
    counts = torch.bincount(torch.tensor(sampling.sample(logits, rows)), minlength=3)
    # Three standard deviations of a share of 0.6 in 6,000 draws are 0.019.
    assert (counts / 6000).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.02)


def test_top_p_over_more_tokens_than_are_looked_at_first_is_exact() -> None:
    flat = torch.zeros(1, 5000)
    rows = [RowSampler(Sampling(seed=seed, top_p=0.999)) for seed in range(400)]
    drawn = sampling.sample(flat.expand(400, -1), rows)
    # Half of 5,000 equally likely tokens lie above the 256 that are looked at first.
    assert len([token for token in drawn if token >= 2500]) > 100


def test_a_model_that_does_not_attend_fully_is_refused() -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(max_position_embeddings=4096)
    config.layer_types = ["full_attention", "sliding_attention"]
    config.sliding_window = 512
    with pytest.raises(ConfigError, match=r"sliding_attention.*lower.*to 512"):
        row_parts.check_model(config, context_tokens=1024)
    row_parts.check_model(config, context_tokens=512)
    with pytest.raises(ConfigError, match="the model has 4096 positions"):
        row_parts.check_model(LlamaConfig(max_position_embeddings=4096), context_tokens=8192)


def test_chunks_are_read_with_those_of_like_length() -> None:
    assert batches([10, 100, 9, 95, 10], batch_size=5) == [[1, 3], [0, 4, 2]]
    assert batches([7], batch_size=1) == [[0]]
    assert batches([8, 8, 8], batch_size=3) == [[0, 1, 2]]


def test_only_later_chunks_of_a_prompt_need_a_mask(model: Any) -> None:
    """A mask makes attention kernels read what they would leave out: twice the work of a prompt."""
    cache = RowCache(
        model.config,
        num_rows=4,
        context_tokens=64,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    positions, mask = cache.aim([(0, 0, 5), (1, 0, 9)])
    assert mask is None
    assert positions.shape == (2, 9)
    _, mask = cache.aim([(0, 5, 4), (2, 0, 3)])
    assert mask is not None
    assert mask[0, 0, 0].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
