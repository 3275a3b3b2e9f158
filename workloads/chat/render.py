"""What the page shows, as text: messages of the chat, status, table of the arms. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from workloads.chat.arms import HEADERS, Arm, Key, table
from workloads.chat.conversation import Conversation, answer_of
from workloads.chat.reply import Reply, caption, pretty_arguments

Shown = list[dict[str, Any]]


def column(conversation: Conversation, index: int, *, hides_names: bool) -> Shown:
    """Return one column of the conversation as the chat component takes it."""
    shown: Shown = []
    for turn in conversation["turns"]:
        shown += [_question(turn["role"], turn["text"])]
        shown += answer_messages(answer_of(turn, index), hides_name=hides_names)
    return shown


def growing(before: Shown, role: str, text: str, reply: Reply, *, hides_name: bool) -> Shown:
    """Return a column whose last answer is still coming."""
    return [
        *before,
        _question(role, text),
        *answer_messages(reply.to_json(), hides_name=hides_name),
    ]


def answer_messages(answer: Mapping[str, Any], *, hides_name: bool) -> Shown:
    """Return an answer: thought, text, a fold for each call, what went wrong, the times."""
    shown: Shown = []
    is_over = answer["finish"] is not None
    if answer["thought"]:
        status = "done" if answer["text"] or is_over else "pending"
        shown.append(_fold("Thought", answer["thought"], status))
    if answer["text"]:
        shown.append(_said(answer["text"]))
    for call in answer["calls"]:
        arguments = pretty_arguments(call["arguments"])
        shown.append(_fold(f"Tool call: {call['name']}", f"```json\n{arguments}\n```", None))
    if answer["error"] is not None:
        shown.append(_said(f"**No answer:** {_plain(answer['error'])}"))
    if not shown:
        shown.append(_said("(an empty answer)" if is_over else "..."))
    if is_over and (line := caption(answer)):
        who = "name shown after your vote" if hides_name else _who(answer)
        shown.append(_said(f"*{_plain(line)}*\n\n*{_plain(who)}*"))
    return shown


def status_html(problems: Mapping[str, str], servers: Sequence[str], models: Sequence[str]) -> str:
    """Return the line that says whether every server is there."""
    if problems:
        lines = "; ".join(f"{url}: {reason}" for url, reason in problems.items())
        text = f"Not connected: {lines}. Trying again; what you wrote stays."
        return f'<p role="alert" class="status down">{escape(text)}</p>'
    text = f"Connected to {', '.join(servers)}: {', '.join(models)}"
    return f'<p role="status" class="status up">{escape(text)}</p>'


def load_html(lines: Sequence[str]) -> str:
    """Return how busy the servers are."""
    return "".join(f'<p class="load">{escape(line)}</p>' for line in lines)


def notice_html(text: str) -> str:
    """Return what the reader has to change before anything is sent; "" for nothing."""
    return f'<p role="alert" class="notice">{escape(text)}</p>' if text else ""


def arms_html(arms: Mapping[Key, Arm]) -> str:
    """Return the table of all arms."""
    if not arms:
        return '<p class="load">No answers yet.</p>'
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in HEADERS)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in table(arms)
    )
    return (
        '<div class="arms" tabindex="0" role="region" aria-label="Metrics of each arm">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _question(role: str, text: str) -> dict[str, Any]:
    content = f"**Result of the tool:**\n\n{text}" if role == "tool" else text
    return {"role": "user", "content": content}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _fold(title: str, text: str, status: str | None) -> dict[str, Any]:
    metadata = {"title": title, **({"status": status} if status else {})}
    return {"role": "assistant", "content": text, "metadata": metadata}


def _who(answer: Mapping[str, Any]) -> str:
    adapter = {True: ", adapter on", False: ", adapter off"}.get(answer["is_tuned"], "")
    return f"{answer['model']}{adapter}"


def _plain(text: str) -> str:
    """Text that markdown leaves as it is."""
    return "".join(f"\\{each}" if each in "\\`*_{}[]<>#|~!" else each for each in text)
