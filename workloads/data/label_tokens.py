"""Token ids of rendered chats, with labels on the tokens of the assistant's spans.

Owns how characters become tokens. A token that lies across the edge of a span is an error, as
training and generation would see different tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workloads.common.exit_codes import DataError
from workloads.data.token_rows import TokenRows

if TYPE_CHECKING:
    from workloads.data.chat_template import Rendered

_SIZES: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def encode(tokenizer: Any, rendered: Sequence[Rendered]) -> TokenRows:
    """Return one row a rendered chat; the tokenizer library runs on all CPUs unless told not to."""
    import numpy as np

    backend = tokenizer.backend_tokenizer
    texts = [item.text for item in rendered]
    sizes = _token_bytes(backend)
    # Without the places of tokens, which take the library a tenth of its time.
    encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    flat = array("i")
    offsets = np.zeros(len(rendered) + 1, dtype=np.int64)
    for number, encoding in enumerate(encodings, start=1):
        flat.extend(encoding.ids)
        offsets[number] = len(flat)
    ids = np.frombuffer(flat, dtype=np.int32) if flat else np.zeros(0, np.int32)
    learned = np.zeros(len(ids), dtype=np.bool_)
    ends = None if sizes is None else np.concatenate([[0], np.cumsum(sizes[ids])])
    for number, item in enumerate(rendered):
        first, last = int(offsets[number]), int(offsets[number + 1])
        spans = None if ends is None else _by_bytes(ends[first : last + 1] - ends[first], item)
        if spans is None:
            spans = _token_spans(backend.encode(item.text, add_special_tokens=False), item)
        for start, end in spans:
            learned[first + start : first + end] = True
    return TokenRows(input_ids=ids, learned=learned, offsets=offsets)


def _by_bytes(ends: Any, item: Rendered) -> list[tuple[int, int]] | None:
    """Return the spans in tokens by the bytes before each token; None where that does not do.

    Tokens of a byte-level tokenizer are the text's bytes one after another. Where their sum is not
    the text's size, or no token starts at an edge, the places of the tokens must be asked for.
    """
    edges = [position for span in item.spans for position in span]
    if item.text.isascii():
        size_bytes = len(item.text)
    else:
        size_bytes = len(item.text.encode())
        edges = [len(item.text[:position].encode()) for position in edges]
    if ends[-1] != size_bytes:
        return None
    tokens = ends.searchsorted(edges).tolist()
    if any(ends[token] != edge for token, edge in zip(tokens, edges, strict=True)):
        return None
    return list(zip(tokens[::2], tokens[1::2], strict=True))


def _token_bytes(backend: Any) -> Any:
    """Return the bytes of every token of a byte-level tokenizer as an array; None for others."""
    import numpy as np

    found = _SIZES.get(backend)
    if found is None:
        from tokenizers import decoders

        if backend.normalizer is None and isinstance(backend.decoder, decoders.ByteLevel):
            added = backend.get_added_tokens_decoder()
            sizes = np.zeros(max([*backend.get_vocab().values(), *added]) + 1, dtype=np.int64)
            # One character of a byte-level token stands for one byte; added tokens are text.
            for text, token in backend.get_vocab().items():
                sizes[token] = len(text)
            for token, text in added.items():
                sizes[token] = len(text.content.encode())
        else:
            sizes = np.zeros(0, dtype=np.int64)
        _SIZES[backend] = found = sizes
    return found if len(found) else None


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
