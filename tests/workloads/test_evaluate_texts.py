"""Text scores against the packages that define them."""

from __future__ import annotations

import random
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from workloads.data.chats import Chat
from workloads.evaluate.compare_models import metric_report
from workloads.evaluate.generate import ModelRows
from workloads.evaluate.held_out import HeldOut
from workloads.evaluate.resampling import Sampling
from workloads.evaluate.scores import (
    bleu_of,
    bleu_parts,
    common_length,
    invented_share,
    measured,
    repeated_share,
    row_scores,
    term_recall,
    text_scores,
    token_f1,
    words,
)

CASES = [
    ("the cat sat on the mat today, ok?", "the cat sat on a mat now"),
    ("Total: $1,234.50 (net).", "total 1 234 50 net"),
    ("", "something"),
    ("something", ""),
    ("", ""),
    ("... !", "?"),
    ("naïve café", "naive cafe"),
    ("a a a a b", "a a b b b"),
]


def random_texts(count: int) -> list[tuple[str, str]]:
    """Pairs of texts over few words, so that they share many."""
    rng = random.Random(0)
    vocabulary = ["net", "gross", "Q1", "Q-2", "rate,", "10.5%", "the", "fund's"]
    return [
        (
            " ".join(rng.choices(vocabulary, k=rng.randrange(1, 40))),
            " ".join(rng.choices(vocabulary, k=rng.randrange(1, 40))),
        )
        for _ in range(count)
    ]


@pytest.mark.feature("S000-41")
@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL"])
def test_rouge_is_that_of_rouge_score(kind: str) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind])
    for reference, generated in CASES + random_texts(200):
        theirs = scorer.score(reference, generated)[kind].fmeasure
        assert text_scores(reference, generated)[kind] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.feature("S000-41")
def test_bleu_is_that_of_sacrebleu() -> None:
    import sacrebleu

    pairs = CASES[:2] + random_texts(50)
    ours = bleu_of([bleu_parts(reference, generated) for reference, generated in pairs])
    references, generated = zip(*pairs, strict=True)
    theirs = sacrebleu.corpus_bleu(list(generated), [list(references)])
    assert ours.value == pytest.approx(theirs.score, abs=1e-9)


@pytest.mark.feature("S000-41")
def test_a_model_is_scored_by_its_answers_against_the_references() -> None:
    """BLEU of short answers to long references is another one than the other way round."""
    import sacrebleu

    references, generated = zip(*random_texts(8), strict=True)
    short = [" ".join(text.split()[:6]) for text in generated]
    turns = [
        ({"role": "user", "content": "ask"}, {"role": "assistant", "content": each})
        for each in references
    ]
    chats = [Chat(id="c", group="g", messages=each) for each in turns]
    held_out: Any = SimpleNamespace(chats=chats, references=references, terms=())
    rows: Any = SimpleNamespace(generated=short, losses=[(1.0, 1)] * 8)
    found = measured(held_out, rows)
    theirs = sacrebleu.corpus_bleu(short, [list(references)]).score
    assert found["bleu"].value == pytest.approx(theirs, abs=1e-9)
    pairs = zip(references, short, strict=True)
    rouge = fmean(text_scores(*pair)["rougeL"] for pair in pairs)
    assert found["rougeL"].value == pytest.approx(rouge)


def test_the_longest_common_subsequence_is_the_textbooks() -> None:
    def by_table(first: list[str], second: list[str]) -> int:
        row = [0] * (len(second) + 1)
        for a in first:
            above = row[:]
            for j, b in enumerate(second):
                row[j + 1] = above[j] + 1 if a == b else max(above[j + 1], row[j])
        return row[-1]

    for reference, generated in random_texts(200):
        first, second = words(reference), words(generated)
        assert common_length(first, second) == by_table(first, second)


def test_token_f1_ignores_articles_case_and_punctuation_as_squad_does() -> None:
    assert token_f1("The net asset value.", "net asset VALUE") == 1.0
    assert token_f1("the", "a") == 1.0
    assert token_f1("net asset value", "gross asset") == pytest.approx(2 * 1 / (2 + 3))


def test_exact_match_forgives_outer_white_space_only() -> None:
    assert text_scores("yes", " yes\n")["exact_match"] == 1.0
    assert text_scores("yes", "Yes")["exact_match"] == 0.0


def test_an_answer_that_loops_is_seen() -> None:
    assert repeated_share(words("one two three four five six")) == 0.0
    assert repeated_share(words("buy the fund now " * 20)) > 0.9


_KNOWN = "How long is the lease in Lyon?\nThe lease in Lyon ends on 2027-03-31 and costs 1,200 EUR."


@pytest.mark.feature("S000-121")
@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("It ends on 2027-03-31.", 0.0),
        ("It ends on 2028-03-31.", 1.0),
        ("The lease in Lyon costs 1200 EUR.", 0.0),  # a comma of thousands is no other number
        ("The lease in Paris costs 1,200 EUR.", 1 / 3),
        ("It costs 1,250 EUR a month, says Mr Dupont.", 3 / 4),
        ("Certainly! Nothing is known. Ask again: Then wait", 0.0),  # words that begin a sentence
        ("1. Ask Lyon.\n2) Then pay.\n- Keep it.\n\t• Sign “Here”\r\n\r\n| Name |", 0.0),
        ("The lease in (Paris) ends.", 1.0),
        ("It costs 1,200.00 EUR from 2027 on, or 2027-2028", 3 / 5),
        ("Lyon's lease is the Lyon-based one.", 0.0),
        ("", 0.0),
    ],
)
def test_numbers_and_names_that_nobody_gave_are_invented(answer: str, share: float) -> None:
    assert invented_share(_KNOWN, answer) == pytest.approx(share)


@pytest.mark.feature("S000-121")
def test_terms_of_the_domain_count_where_the_reference_has_them() -> None:
    terms = ("NAV", "expense ratio", "custodian")
    reference = "The NAV falls by the expense ratio."
    assert term_recall(terms, reference, "the navs, net of no ratio") == {"term_recall": 0.5}
    both = "NAV, less the Expense\nRatios"
    assert term_recall(terms, reference, both) == {"term_recall": 1.0}
    assert term_recall(terms, reference, "They navigate") == {"term_recall": 0.0}
    assert term_recall(terms, "no such word", "NAV") == {}


@pytest.mark.feature("S000-45")
@pytest.mark.feature("S000-121")
def test_an_answer_may_draw_on_the_chat_and_on_the_reference() -> None:
    turns = ("user", "The lease in Lyon: what does it cost?"), ("assistant", "It costs 1,200 EUR.")
    messages = tuple({"role": role, "content": text} for role, text in turns)
    held_out = HeldOut(
        chats=[Chat(id="a", group="a", messages=messages)] * 3,
        prompts=[[1]] * 3,
        examples=[],
        pad_id=0,
        overlap={},
        terms=("EUR",),
        references=["It costs 1,200 EUR."] * 3,
    )
    answers = ("In Lyon it costs 1200 EUR.", "In Lyon it costs 900 EUR.", "It costs 900 USD.")
    rows = ModelRows(generated=answers, num_tokens=(1, 1, 1), losses=())
    scores = row_scores(held_out, rows)
    assert [row["invented_share"] for row in scores] == [0.0, pytest.approx(1 / 3), 1.0]
    assert [row["term_recall"] for row in scores] == [1.0, 1.0, 0.0]


@pytest.mark.feature("S000-121")
def test_one_name_in_two_forms_of_unicode_is_one() -> None:
    composed, apart = "in Nestl\u00e9", "in Nestle\u0301"
    assert invented_share(composed, apart) == invented_share(apart, composed) == 0.0


@pytest.mark.feature("S000-121")
def test_fewer_inventions_and_more_terms_are_an_improvement() -> None:
    sampling = Sampling(resamples=10, confidence=0.95, seed=0)
    for name, before, after in (("invented_share", 0.5, 0.25), ("term_recall", 0.5, 0.75)):
        found = metric_report(name, [before] * 4, [after] * 4, sampling)
        assert found["improvement_percent"] == 50, name


def test_message_length_is_in_characters() -> None:
    assert text_scores("x", "four")["message_length"] == 4.0
