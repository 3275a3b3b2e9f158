"""The finance chats that ship with this repository: questions to a bank and short, exact answers.

Owns every row: made here from templates, with amounts that are computed, so nobody's text or data
is in them (licence: that of this repository). Direct answers without reasoning, as a small domain
assistant gives them. They show the format and test the pipeline; a model learns little from them.
Usage: python -m tests.workloads.finance_chats, which writes the file anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "workloads" / "data" / "samples" / "finance_chats.parquet"
NUM_ROWS = 240
COLUMNS = ("id", "system", "user", "assistant", "topic")
SYSTEM = (
    "You are the assistant of InnovationBank. Answer questions on money matters directly and in "
    "plain words. You do not give investment advice."
)
Turn = tuple[str, str]


def rows() -> list[dict[str, str]]:
    """Return the rows: each topic in turn, no question twice."""
    draw = random.Random("finance chats")
    found: list[dict[str, str]] = []
    asked: set[str] = set()
    topics = _endless(list(TOPICS.items()))
    while len(found) < NUM_ROWS:
        topic, make = next(topics)
        question, answer = make(draw)
        if question in asked:
            continue
        asked.add(question)
        found.append(
            {
                "id": f"finance-{len(found):03}",
                "system": SYSTEM,
                "user": question,
                "assistant": answer,
                "topic": topic,
            }
        )
    return found


def _endless(
    topics: Sequence[tuple[str, Callable[[random.Random], Turn]]],
) -> Iterator[tuple[str, Callable[[random.Random], Turn]]]:
    while True:
        yield from topics


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}"


def _savings(draw: random.Random) -> Turn:
    amount, rate, years = (
        draw.randrange(500, 40_000, 250),
        draw.randrange(5, 60) / 10,
        draw.randint(2, 25),
    )
    total = amount * (1 + rate / 100) ** years
    return (
        (
            f"I put {_dollars(amount)} into a savings account at {rate}% a year, interest added "
            f"once a "
            f"year. What is it worth after {years} years?"
        ),
        (
            f"After {years} years the account holds {_dollars(total)}, of which "
            f"{_dollars(total - amount)} is interest."
        ),
    )


def _loan(draw: random.Random) -> Turn:
    amount, rate, years = (
        draw.randrange(2_000, 60_000, 500),
        draw.randrange(20, 120) / 10,
        draw.randint(1, 10),
    )
    monthly, months = rate / 1200, years * 12
    payment = amount * monthly / (1 - (1 + monthly) ** -months)
    return (
        (
            f"What is the monthly payment on a loan of {_dollars(amount)} at {rate}% over {years} "
            f"{'year' if years == 1 else 'years'}?"
        ),
        (
            f"The monthly payment is {_dollars(payment)}. Over {months} payments you pay "
            f"{_dollars(payment * months)} in all, {_dollars(payment * months - amount)} of it"
            " interest."
        ),
    )


def _currency(draw: random.Random) -> Turn:
    amount, rate, fee = (
        draw.randrange(50, 5_000, 10),
        draw.randrange(80, 130) / 100,
        draw.randrange(5, 30) / 10,
    )
    received = amount * rate * (1 - fee / 100)
    return (
        (
            f"I change {_dollars(amount)} to euro at a rate of {rate:.2f} with a fee of {fee}%. "
            "How many euro do I get?"
        ),
        (
            f"You get {received:,.2f} euro: {amount * rate:,.2f} euro less a fee of "
            f"{amount * rate * fee / 100:,.2f} euro."
        ),
    )


def _shares(draw: random.Random) -> Turn:
    count, price, dividend = (
        draw.randrange(5, 900),
        draw.randrange(400, 30_000) / 100,
        draw.randrange(10, 400) / 100,
    )
    return (
        (
            f"I own {count} shares at {_dollars(price)} and each pays {_dollars(dividend)} a year. "
            "What dividend do I receive and what is the yield?"
        ),
        (
            f"You receive {_dollars(count * dividend)} a year, a yield of "
            f"{100 * dividend / price:.2f}"
            "% "
            f"on shares worth {_dollars(count * price)}."
        ),
    )


def _budget(draw: random.Random) -> Turn:
    income = draw.randrange(1_800, 9_000, 50)
    return (
        f"My income after tax is {_dollars(income)} a month. How would a 50/30/20 budget split it?",
        (
            f"Needs get {_dollars(income * 0.5)}, wants {_dollars(income * 0.3)}, and savings "
            f"and debt "
            f"payments {_dollars(income * 0.2)} a month."
        ),
    )


def _card(draw: random.Random) -> Turn:
    balance, rate = draw.randrange(200, 12_000, 25), draw.randrange(120, 290) / 10
    return (
        (
            f"I carry {_dollars(balance)} on a credit card with {rate}% interest a year. What "
            f"does one "
            "month cost me?"
        ),
        (
            f"About {_dollars(balance * rate / 1200)} in interest for the month, if the balance "
            f"stays "
            "the same. Paying the whole balance by the due date avoids it."
        ),
    )


def _reserve(draw: random.Random) -> Turn:
    costs, months, saving = (
        draw.randrange(900, 4_500, 50),
        draw.randint(3, 6),
        draw.randrange(100, 900, 25),
    )
    goal = costs * months
    return (
        (
            f"I spend {_dollars(costs)} a month and want {months} months in reserve. How long does "
            "that "
            f"take at {_dollars(saving)} a month?"
        ),
        (
            f"You need {_dollars(goal)}, which takes {-(-goal // saving)} months at "
            f"{_dollars(saving)} a month."
        ),
    )


def _fees(draw: random.Random) -> Turn:
    amount, high, low = (
        draw.randrange(5_000, 80_000, 1_000),
        draw.randrange(90, 190) / 100,
        draw.randrange(5, 40) / 100,
    )
    return (
        (
            f"One fund charges {high:.2f}% a year and another {low:.2f}%. What is the "
            f"difference on "
            f"{_dollars(amount)} in the first year?"
        ),
        (
            f"The first charges {_dollars(amount * high / 100)}, the second "
            f"{_dollars(amount * low / 100)}: a difference of "
            f"{_dollars(amount * (high - low) / 100)}."
        ),
    )


TOPICS: dict[str, Callable[[random.Random], Turn]] = {
    "savings": _savings,
    "loans": _loan,
    "currency": _currency,
    "shares": _shares,
    "budget": _budget,
    "cards": _card,
    "reserve": _reserve,
    "fees": _fees,
}


def main() -> None:
    """Write the rows to the parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    pq.write_table(pa.Table.from_pylist(rows(), schema=schema), SAMPLE, compression="zstd")


if __name__ == "__main__":
    main()
