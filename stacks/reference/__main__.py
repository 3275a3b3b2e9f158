"""Writes the pages that are made from the code: python -m stacks.reference [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path

from stacks.reference.pages import pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    """Writes each page into the folder, `docs/` by default, and names those that changed."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    for name, text in pages(DOCS).items():
        page = folder / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(page)


if __name__ == "__main__":
    main()
