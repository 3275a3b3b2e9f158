"""The architecture drawings of the shipped stacks, from what they declare."""

from __future__ import annotations

import tempfile
from pathlib import Path

from infra.render.stack_drawing import stack_svg
from stacks.load import load_stack, stack_names


def drawings() -> dict[str, str]:
    """Path in the site -> text of the page and of one SVG for each shipped stack."""
    with tempfile.TemporaryDirectory() as folder:
        # The stack files let in whoever has this key; no drawing shows it.
        key = Path(folder) / "id.pub"
        key.write_text(f"ssh-ed25519 {'A' * 68} docs\n", encoding="utf-8")
        specs = [
            load_stack(name, environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})
            for name in stack_names()
        ]
    lines = [
        "# Drawings of the stacks",
        "",
        "Drawn from the stack files at each build; `soperator draw --stack NAME` draws yours.",
    ]
    files: dict[str, str] = {}
    for spec in specs:
        files[f"reference/{spec.name}.svg"] = stack_svg(spec)
        lines += ["", f"## {spec.name}", "", f"![Architecture of {spec.name}]({spec.name}.svg)"]
    return {"reference/drawings.md": "\n".join(lines) + "\n", **files}
