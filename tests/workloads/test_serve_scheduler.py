"""The scheduler and the loop around it, with a model that keeps what a KV cache would hold.

The invariant: whoever comes and goes, an answer sees its own tokens only, in order.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from tests.workloads.serve_stand import Collected, asking, scripted_engine
from workloads.serve.scheduler import ApiError, Generation, Scheduler, Sequence


def make(num_prompt: int) -> Sequence:
    return Sequence(asked=asking(range(num_prompt)))


def say(generation: Generation) -> list[int]:
    """An answer that no other prompt has."""
    return [65 + (sum(generation.prompt_ids) + index) % 26 for index in range(64)]


asks = st.lists(
    st.tuples(
        st.lists(st.integers(0, 200), min_size=1, max_size=40),
        st.integers(1, 12),
        st.none() | st.integers(0, 5),
    ),
    min_size=1,
    max_size=24,
)


@law(40, shares_fixtures=True)
@given(asks=asks, num_rows=st.integers(1, 5), prefill_tokens=st.integers(1, 48))
def test_every_answer_is_its_own_whoever_comes_and_goes(
    tokenizer: Any,
    asks: list[tuple[list[int], int, int | None]],
    num_rows: int,
    prefill_tokens: int,
) -> None:
    engine, passes = scripted_engine(
        tokenizer, say, num_rows=num_rows, prefill_tokens=prefill_tokens
    )
    answers = []
    leave: dict[int, Collected] = {}
    turn = 0

    def gate() -> None:
        nonlocal turn
        turn += 1
        for number, sink in list(leave.items()):
            if len(sink.deltas) >= turn % 5:
                engine.cancel(number)

    passes.gate = gate
    for prompt, max_tokens, leaves_after in asks:
        generation, sink = asking(prompt, max_tokens), Collected()
        answers.append((generation, sink, leaves_after))
        if leaves_after is not None:
            leave[generation.number] = sink
        engine.submit([(generation, sink)])
    engine.start()
    for generation, sink, leaves_after in answers:
        if leaves_after is None:
            expected = say(generation)[: generation.max_tokens]
            assert sink.text == tokenizer.decode(expected)
            assert sink.last.finish == "length"
    assert engine.stop(30) == 0
    assert engine.load().num_running == engine.load().num_waiting == 0
    assert max(passes.read_tokens, default=0) <= prefill_tokens
    assert max(passes.batches, default=0) <= num_rows


def test_a_long_prompt_is_read_in_parts_while_others_decode() -> None:
    scheduler = Scheduler(num_rows=2, max_queue=2, prefill_tokens=10)
    short, long = make(4), make(25)
    scheduler.add([short, long])
    assert [(each.sequence, each.start, each.end) for each in scheduler.reading()] == [
        (short, 0, 4),
        (long, 0, 6),
    ]
    assert scheduler.decoding() == []
    short.num_cached, long.num_cached = 4, 6
    short.output_ids.append(65)
    reading, decoding = scheduler.reading(), scheduler.decoding()
    assert [(each.sequence, [*each.ids], each.is_last) for each in decoding] == [
        (short, [65], True)
    ]
    assert [(each.start, each.end, each.is_last) for each in reading] == [(6, 16, False)]


def test_a_row_that_reads_its_prompt_beside_one_that_writes_reads_a_token_with_it() -> None:
    """A pass over rows side by side sees the cache as it lies."""
    scheduler = Scheduler(num_rows=3, max_queue=0, prefill_tokens=10)
    long, short, other = make(25), make(4), make(9)
    scheduler.add([long, short, other])
    scheduler.reading()
    long.num_cached, short.num_cached = 6, 4
    short.output_ids.append(65)
    chunks = scheduler.decoding()
    assert [(each.sequence, [*each.ids], each.is_last) for each in chunks] == [
        (long, [6], False),
        (short, [65], True),
    ]


def test_rows_are_given_in_the_order_of_arrival() -> None:
    scheduler = Scheduler(num_rows=1, max_queue=3, prefill_tokens=10)
    first, second, third = make(1), make(1), make(1)
    scheduler.add([first])
    scheduler.add([second, third])
    scheduler.reading()
    assert scheduler.running == [first]
    scheduler.remove(first)
    scheduler.reading()
    assert scheduler.running == [second]


def test_the_last_row_fills_the_place_of_one_that_ends() -> None:
    scheduler = Scheduler(num_rows=3, max_queue=0, prefill_tokens=100)
    sequences = [make(2), make(3), make(4)]
    scheduler.add(sequences)
    scheduler.reading()
    for each in sequences:
        each.num_cached = len(each.asked.prompt_ids)
    assert scheduler.remove(sequences[0]) is sequences[2], "its tokens lie behind the last row"
    assert (sequences[2].row, sequences[2].num_cached) == (0, 4)
    assert [each.row for each in scheduler.running] == [0, 1]
    assert scheduler.remove(sequences[1]) is None, "it was the last row: nothing to move"


def test_a_full_queue_takes_none_of_several() -> None:
    scheduler = Scheduler(num_rows=1, max_queue=1, prefill_tokens=10)
    with pytest.raises(ApiError, match="at most 1 may wait"):
        scheduler.add([make(1), make(1), make(1)])
    assert not scheduler.waiting
    scheduler.add([make(1), make(1)])
