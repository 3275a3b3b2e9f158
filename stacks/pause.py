"""The pause switch in the text of a stack file: set_paused(text, paused) -> text.

Owns one line, `paused: ...` under `soperator-stack:nodes`. All other lines stay as they are, with
their comments: a YAML writer would lose them.
"""

from __future__ import annotations

import re
from typing import Final

from stacks.decode import is_map
from stacks.errors import UserError
from stacks.load import PROJECT
from stacks.yaml_text import parse_yaml

_KEY: Final = f"{PROJECT}:nodes"
_HEAD: Final = re.compile(rf"^(?P<indent> *){re.escape(_KEY)}:[ ]*(#.*)?$")
_LINE: Final = re.compile(r"^(?P<indent> *)paused:\s*(?P<value>\S+)(?P<rest>.*)$")
_ROUND_TRIP: Final = (
    f"write it by hand: `paused: true` under `{_KEY}:`, or pulumi config set --path "
    f"'{_KEY}.paused' true"
)


def set_paused(text: str, *, paused: bool) -> str:
    """The text with `nodes.paused` at the value; the same text where it already has it."""
    nodes = _nodes(text)
    if bool(nodes.get("paused", False)) is paused:
        return text
    lines = text.splitlines(keepends=True)
    at = next((place for place, line in enumerate(lines) if _HEAD.match(line.rstrip("\n"))), None)
    if at is None:
        raise UserError(f"'{_KEY}' is not a block of its own lines; {_ROUND_TRIP}")
    first = next(line for line in lines[at + 1 :] if line.strip() and line.lstrip()[0] != "#")
    indent = len(first) - len(first.lstrip(" "))
    value = str(paused).lower()
    for place in range(at + 1, len(lines)):
        found = _LINE.match(lines[place].rstrip("\n"))
        if found is not None and len(found["indent"]) == indent:
            # What a pause wrote is taken out again: the file is as it was before it.
            is_own = not paused and not found["rest"].strip()
            lines[place] = "" if is_own else f"{found['indent']}paused: {value}{found['rest']}\n"
            break
    else:
        lines.insert(at + 1, f"{' ' * indent}paused: {value}\n")
    changed = "".join(lines)
    # The proof that nothing else moved, whatever shape the file had.
    others = {key: value for key, value in nodes.items() if key != "paused"}
    after = _nodes(changed)
    if bool(after.pop("paused", False)) is not paused or after != others:
        raise UserError(f"'{_KEY}' has a shape that is not edited here; {_ROUND_TRIP}")
    return changed


def _nodes(text: str) -> dict[str, object]:
    document = parse_yaml(text)
    config = document.get("config") if is_map(document) else None
    nodes = config.get(_KEY) if is_map(config) else None
    if not is_map(nodes):
        raise UserError(f"no mapping '{_KEY}' in the file; {_ROUND_TRIP}")
    return dict(nodes)
