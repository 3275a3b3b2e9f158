"""Token ids of rendered chats, with labels on the tokens of the assistant's spans.

Owns how characters become tokens. A token that lies across the edge of a span is an error, as
training and generation would see different tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workloads.common.exit_codes import DataError
from workloads.data.token_rows import TokenRows

if TYPE_CHECKING:
    from workloads.data.chat_template import Rendered


def encode(tokenizer: Any, rendered: Sequence[Rendered]) -> TokenRows:
    """Return one row a rendered chat; the tokenizer library runs on all CPUs unless told not to."""
    import numpy as np

    encodings = tokenizer.backend_tokenizer.encode_batch(
        [item.text for item in rendered], add_special_tokens=False
    )
    ids = array("i")
    offsets = np.zeros(len(rendered) + 1, dtype=np.int64)
    bounds: list[tuple[int, int]] = []
    for number, (encoding, item) in enumerate(zip(encodings, rendered, strict=True)):
        start = len(ids)
        ids.extend(encoding.ids)
        offsets[number + 1] = len(ids)
        bounds += ((start + a, start + b) for a, b in _token_spans(encoding, item))
    learned = np.zeros(len(ids), dtype=np.bool_)
    for first, last in bounds:
        learned[first:last] = True
    return TokenRows(
        input_ids=np.frombuffer(ids, dtype=np.int32) if ids else np.zeros(0, np.int32),
        learned=learned,
        offsets=offsets,
    )


def _token_spans(encoding: Any, item: Rendered) -> list[tuple[int, int]]:
    """Return the spans in tokens instead of characters."""
    found: list[tuple[int, int]] = []
    for start, end in item.spans:
        first = encoding.char_to_token(start)
        after = len(encoding) if end == len(item.text) else encoding.char_to_token(end)
        if (
            first is None
            or after is None
            or encoding.token_to_chars(first)[0] != start
            or encoding.token_to_chars(after - 1)[1] != end
        ):
            return _by_offsets(encoding.offsets, item)
        found.append((first, after))
    return found


def _by_offsets(offsets: Sequence[tuple[int, int]], item: Rendered) -> list[tuple[int, int]]:
    """Return the spans in tokens by the place of every token: some tokenizers trim white space."""
    found: list[tuple[int, int]] = []
    for start, end in item.spans:
        inside = [
            position
            for position, (first, last) in enumerate(offsets)
            if first < last and first < end and last > start
        ]
        for position in inside:
            first, last = offsets[position]
            if first < start or last > end:
                raise DataError(
                    f"token {item.text[first:last]!r} lies across the edge of an assistant turn, "
                    "so training and generation would see different tokens; this tokenizer and "
                    "chat template do not fit each other"
                )
        if inside:
            found.append((inside[0], inside[-1] + 1))
    return found
