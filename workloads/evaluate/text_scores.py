"""Text against a reference, without a network or a judging model.

Owns ROUGE-1, ROUGE-2, ROUGE-L (F1, as rouge-score 0.1.2 without stemming: lower case, runs of
letters and digits), SQuAD's token F1, exact match, repetition, and the sufficient statistics of
BLEU, whose arithmetic is sacrebleu's.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np

from workloads.evaluate.resampling import Array, Measured

_WORD = re.compile(r"[a-z0-9]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BLEU_ORDERS = 4


def text_scores(reference: str, generated: str) -> dict[str, float]:
    """Return the scores of one answer, each 0 to 1 but the length in characters."""
    wanted, given = words(reference), words(generated)
    return {
        "message_length": float(len(generated)),
        "exact_match": float(generated.strip() == reference.strip()),
        "token_f1": token_f1(reference, generated),
        "rouge1": rouge_n(wanted, given, 1),
        "rouge2": rouge_n(wanted, given, 2),
        "rougeL": rouge_l(wanted, given),
        "repeated_4gram_share": repeated_share(given),
    }


def words(text: str) -> list[str]:
    """Return the words that ROUGE counts."""
    return _WORD.findall(text.lower())


def rouge_n(reference: Sequence[str], generated: Sequence[str], order: int) -> float:
    """Return the F1 of common runs of `order` words."""
    wanted, given = _ngrams(reference, order), _ngrams(generated, order)
    return _f1((wanted & given).total(), given.total(), wanted.total())


def rouge_l(reference: Sequence[str], generated: Sequence[str]) -> float:
    """Return the F1 of the longest common subsequence of words."""
    return _f1(common_length(reference, generated), len(generated), len(reference))


def common_length(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence.

    One bit a word of `first` (Hyyro 2004): a step costs one addition of long integers, where the
    table of the textbook costs a Python loop.
    """
    places: dict[Hashable, int] = {}
    for index, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << index
    full = (1 << len(first)) - 1
    row = full
    for word in second:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(first) - row.bit_count()


def token_f1(reference: str, generated: str) -> float:
    """Return SQuAD's F1: common words without case, punctuation and articles; both empty: 1."""
    wanted, given = _plain(reference), _plain(generated)
    if not wanted or not given:
        return float(wanted == given)
    common = (Counter(wanted) & Counter(given)).total()
    return _f1(common, len(given), len(wanted))


def repeated_share(given: Sequence[str]) -> float:
    """Return the share of four-word runs that came before: 0 for none, near 1 for a loop."""
    runs = _ngrams(given, 4)
    return 1 - len(runs) / runs.total() if runs else 0.0


def bleu_parts(reference: str, generated: str) -> list[float]:
    """Return lengths, matches and totals of one answer, which sums over rows make corpus BLEU."""
    made = _bleu().sentence_score(generated, [reference])
    return [float(made.sys_len), float(made.ref_len), *map(float, [*made.counts, *made.totals])]


def bleu_of(parts: Any) -> Measured:
    """Return corpus BLEU (0 to 100) over rows of `bleu_parts`."""
    return Measured(rows=np.asarray(parts, dtype=np.float64), value_of=_bleu_values)


def _bleu_values(sums: Array) -> Array:
    flat = sums.reshape(-1, sums.shape[-1])
    values = [_corpus_bleu([round(value) for value in row]) for row in flat.tolist()]
    return np.array(values).reshape(sums.shape[:-1])


def _corpus_bleu(sums: Sequence[int]) -> float:
    from sacrebleu.metrics.bleu import BLEU

    sys_len, ref_len, *counts = sums
    made = BLEU.compute_bleu(
        # sacrebleu changes these lists where it smooths.
        correct=list(counts[:_BLEU_ORDERS]),
        total=list(counts[_BLEU_ORDERS:]),
        sys_len=sys_len,
        ref_len=ref_len,
        smooth_method="exp",
    )
    return made.score


@cache
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)


def _ngrams(values: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(values[i : i + order]) for i in range(len(values) - order + 1))


def _plain(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(common: int, given: int, wanted: int) -> float:
    return 2 * common / (given + wanted) if common else 0.0
