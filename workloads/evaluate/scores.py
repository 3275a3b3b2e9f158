"""How answers score: function calls, text against a reference, loss; and how each sums over rows.

Calls are scored by the rules of BFCL's own checker; text without a network or a judging model.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from workloads.common.tool_calls import ToolCall, parse_calls
from workloads.data.chats import OPTIONAL, Chat, text_of
from workloads.evaluate.held_out import HeldOut, last_turn
from workloads.evaluate.resampling import Array, Measured, mean_of, perplexity_of

if TYPE_CHECKING:
    from workloads.evaluate.generate import ModelRows

TYPES: Mapping[str, type] = {
    "string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list,
    "dict": dict, "any": str
}  # fmt: skip


def arguments_fit(
    call: ToolCall, *, function: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]
) -> bool:
    """Whether every argument of `call` has an allowed value and none is missing."""
    schema, given = function["parameters"], call.arguments
    details, needed = schema["properties"], set(schema.get("required", ()))
    return (
        _argument_names_fit(call, allowed)
        and needed <= given.keys() <= details.keys()
        and all(_value_matches(given[x], detail=details[x], allowed=allowed[x]) for x in given)
    )


def _value_matches(value: Any, *, detail: Mapping[str, Any], allowed: Sequence[Any]) -> bool:
    expected = TYPES.get(str(detail.get("type")))
    if expected is None:  # a type of JSON schema or of Java, which BFCL's Python rules lack
        return _standard(value) in [_standard(item) for item in allowed]
    if expected is float and type(value) is int:
        value = float(value)
    given = [item for item in allowed if item != OPTIONAL]
    # BFCL lets an answer name a variable: the allowed value's type then differs from the declared
    # one, and the value counts with the allowed value's type.
    is_variable = bool(given) and type(given[0]) is not expected
    if type(value) is not expected:
        return bool(given) and type(value) is type(given[0]) and value in allowed
    if expected is list:
        item_type = TYPES.get(str(detail.get("items", {}).get("type")))
        if item_type and not _items_have_type(value, item_type, allowed):
            return False
        if is_variable:
            return value in allowed
        if item_type is dict:
            return any(_dicts_match(value, item) for item in given)
        lists = [[*map(_standard, item)] for item in allowed if isinstance(item, list)]
        return [*map(_standard, value)] in lists
    if is_variable:
        return value in allowed
    if expected is dict:
        return any(_dict_matches(value, item) for item in given)
    if expected is str:
        return _standard(value) in [_standard(item) for item in allowed if isinstance(item, str)]
    return value in allowed


def _items_have_type(values: Sequence[Any], item_type: type, allowed: Sequence[Any]) -> bool:
    """True when every item has the declared type, or the type of some allowed list's items."""
    if any(not isinstance(item, list) for item in allowed):
        return True
    for item in allowed:
        example = next((x for x in item if x != OPTIONAL), None)
        if all(type(x) is item_type or type(x) is type(example) for x in values):
            return True
    return False


def _dicts_match(values: Sequence[Any], allowed: Sequence[Any]) -> bool:
    return len(values) == len(allowed) and all(
        isinstance(value, dict) and _dict_matches(value, item)
        for value, item in zip(values, allowed, strict=True)
    )


def _dict_matches(value: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> bool:
    for key, item in value.items():
        if key not in allowed or _standard(item) not in [_standard(x) for x in allowed[key]]:
            return False
    return all(key in value or OPTIONAL in values for key, values in allowed.items())


def _standard(value: Any) -> Any:
    """Return a string as BFCL compares it; other values as they are."""
    if not isinstance(value, str):
        return value
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"')


def same_value(value: Any, wanted: Any) -> bool:
    """Whether two values are equal as BFCL compares strings, at any depth; 1 equals 1.0."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(
            same_value(value[key], wanted[key]) for key in wanted
        )
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(same_value, value, wanted))
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return _standard(value) == _standard(wanted)


Expected = tuple[str, Mapping[str, Sequence[Any]]]
"""Function name, and the allowed values of every argument."""


def call_scores(chat: Chat, reference: str, generated: str) -> dict[str, float]:
    """Return the scores, 0 or 1 each, that apply to the row; none when it offers no function.

    `call_parse_failure` is 1 for a call that cannot be read: such an answer is wrong everywhere
    else, and is counted apart, as it is the format that failed. A row where no function fits has
    `relevance_accuracy` alone: 1 when the answer makes no call.
    """
    if not chat.functions:
        return {}
    calls = parse_calls(generated)
    scores = {"call_parse_failure": float(calls is None)}
    expected = _expected(chat, reference)
    if expected is None:
        return {}
    if not expected:
        return {**scores, "relevance_accuracy": float(calls == [])}
    calls = calls or []
    names = Counter(call.name for call in calls) == Counter(name for name, _ in expected)
    functions = {str(function.get("name")): function for function in chat.functions}
    by_rule = bool(chat.possible_answers)

    def names_fit(call: ToolCall, wanted: Expected) -> bool:
        return call.name == wanted[0] and _argument_names_fit(call, wanted[1])

    def values_fit(call: ToolCall, wanted: Expected) -> bool:
        name, allowed = wanted
        if call.name != name:
            return False
        if by_rule:
            return arguments_fit(call, function=functions[name], allowed=allowed)
        return _argument_names_fit(call, allowed) and all(
            same_value(value, allowed[key][0]) for key, value in call.arguments.items()
        )

    return {
        **scores,
        "function_name_accuracy": float(names),
        "argument_name_accuracy": float(_pair_up(calls, expected, names_fit)),
        "argument_accuracy": float(_pair_up(calls, expected, values_fit)),
    }


def _expected(chat: Chat, reference: str) -> list[Expected] | None:
    """Return the calls that the row wants; None when its own reference cannot be read."""
    if chat.possible_answers:
        return [wanted for answer in chat.possible_answers for wanted in answer.items()]
    calls = parse_calls(reference)
    if calls is None:
        return None
    return [
        (call.name, {name: [value] for name, value in call.arguments.items()}) for call in calls
    ]


def _argument_names_fit(call: ToolCall, allowed: Mapping[str, Sequence[Any]]) -> bool:
    needed = {name for name, values in allowed.items() if OPTIONAL not in values}
    return needed <= set(call.arguments) <= set(allowed)


def _pair_up(calls: Sequence[ToolCall], expected: Sequence[Expected], fits: Any) -> bool:
    """Whether every expected call has a call of its own, in any order, and none is left."""
    if len(calls) != len(expected):
        return False
    left = list(calls)
    for wanted in expected:
        found = next((index for index, call in enumerate(left) if fits(call, wanted)), None)
        if found is None:
            return False
        del left[found]
    return True


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
        "rougeL": _f1(common_length(wanted, given), len(given), len(wanted)),
        "repeated_4gram_share": repeated_share(given),
    }


def words(text: str) -> list[str]:
    """Return the words that ROUGE counts."""
    return _WORD.findall(text.lower())


def rouge_n(reference: Sequence[str], generated: Sequence[str], order: int) -> float:
    """Return the F1 of common runs of `order` words."""
    wanted, given = _ngrams(reference, order), _ngrams(generated, order)
    return _f1((wanted & given).total(), given.total(), wanted.total())


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


# A date, or a word; a number keeps its fraction, a time its colons.
_FACT = re.compile(r"\d{4}-\d{1,2}-\d{1,2}\b|\w+(?:(?<=\d)[.:/](?=\d)\w+)*")
_NUMBERING = re.compile(r"^[ \t]*(?:\d+[.)]|[-*•])(?=\s)", re.MULTILINE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_SENTENCE_END = (".", "!", "?", ":", ";", "\n", '"', "“", "‘", "#", "*", "|")  # noqa: RUF001


def invented_share(known: str, generated: str) -> float:
    """Return the share of an answer's numbers and names that `known` lacks; 0 without any.

    `known` is all that the answer may draw on: the chat before it and the reference. A name is a
    word with a capital that no sentence begins with, or one with a digit. One less the precision
    of entities (Nan et al. 2021, arXiv 2102.09130), found by form instead of by a model.
    """
    allowed = {fact.lower() for fact, _ in _facts(known)}
    facts = [
        fact.lower()
        for fact, begins in _facts(generated)
        if any(map(str.isdigit, fact)) or (len(fact) > 1 and fact[0].isupper() and not begins)
    ]
    return sum(fact not in allowed for fact in facts) / len(facts) if facts else 0.0


def _facts(text: str) -> Iterator[tuple[str, bool]]:
    """Words and numbers in one spelling, and whether a sentence begins there."""
    text = _THOUSANDS.sub("", _NUMBERING.sub("", unicodedata.normalize("NFC", text)))
    end = 0
    for match in _FACT.finditer(text):
        gap = text[end : match.start()].rstrip(" \t\r\u00a0")
        fact, begins = match.group(), not (end or gap) or gap.endswith(_SENTENCE_END)
        end = match.end()
        is_decimal = re.fullmatch(r"\d+\.\d+", fact)
        yield fact.rstrip("0").rstrip(".") if is_decimal else fact, begins


def term_recall(terms: Sequence[str], reference: str, generated: str) -> dict[str, float]:
    """Return the share of the reference's `terms` that the answer has; none without any."""
    wanted = [term for term in terms if _has_term(reference, term)]
    used = sum(_has_term(generated, term) for term in wanted)
    return {"term_recall": used / len(wanted)} if wanted else {}


def _has_term(text: str, term: str) -> bool:
    """Whether the term stands there as words, in any case, over lines too; also with an s."""
    words = r"\s+".join(map(re.escape, term.split()))
    return re.search(rf"(?<!\w){words}(?:e?s)?(?!\w)", text, re.IGNORECASE) is not None


def bleu_parts(reference: str, generated: str) -> list[float]:
    """Return lengths, matches and totals of one answer, which sums over rows make corpus BLEU."""
    made = _bleu().sentence_score(generated, [reference])
    return [float(made.sys_len), float(made.ref_len), *map(float, [*made.counts, *made.totals])]


def bleu_of(parts: Any) -> Measured:
    """Return corpus BLEU (0 to 100) over rows of `bleu_parts`."""
    values_of = partial(np.apply_along_axis, _corpus_bleu, -1)
    return Measured(rows=np.asarray(parts, dtype=np.float64), value_of=values_of)


def _corpus_bleu(sums: Array) -> float:
    sys_len, ref_len, *counts = map(round, sums.tolist())
    correct, total = counts[:_BLEU_ORDERS], counts[_BLEU_ORDERS:]
    return _bleu().compute_bleu(correct, total, sys_len, ref_len, smooth_method="exp").score


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


HIGHER_IS_BETTER: Final[Mapping[str, bool]] = {
    "bleu": True, "exact_match": True, "token_f1": True, "term_recall": True,
    "rouge1": True, "rouge2": True, "rougeL": True,
    "function_name_accuracy": True, "argument_name_accuracy": True,
    "argument_accuracy": True, "relevance_accuracy": True, "call_parse_failure": False,
    "perplexity": False, "repeated_4gram_share": False, "invented_share": False
}  # fmt: skip
"""Metrics with a direction; the length of an answer has none."""


def row_scores(held_out: HeldOut, rows: ModelRows) -> list[dict[str, float]]:
    """Return the scores of every answer by name; a row has those that apply to it."""
    made: list[dict[str, float]] = []
    texts = zip(held_out.chats, held_out.references, rows.generated, strict=True)
    for chat, reference, generated in texts:
        said = map(text_of, chat.messages[: last_turn(chat) + 1])
        known = "\n".join([*said, json.dumps(chat.functions, ensure_ascii=False)])
        made.append(
            text_scores(reference, generated)
            | {"invented_share": invented_share(known, generated)}
            | term_recall(held_out.terms, reference, generated)
            | call_scores(chat, reference, generated)
        )
    return made


def measured(held_out: HeldOut, rows: ModelRows) -> dict[str, Measured]:
    """Return every metric of one model over the rows that it applies to."""
    nats, counts = zip(*rows.losses, strict=True)
    made = {"perplexity": perplexity_of(nats, counts)}
    scores = row_scores(held_out, rows)
    for name in dict.fromkeys(name for each in scores for name in each):
        values = [each[name] for each in scores if name in each]
        made["message_length_avg" if name == "message_length" else name] = mean_of(values)
    made["bleu"] = bleu_of([*map(bleu_parts, held_out.references, rows.generated)])
    return made
