"""The HTML page of a bill: page(title, fragments) -> one self-contained document.

Owns the frame and the style sheet (page.css). No script and no request: the page's own content
security policy forbids both. What stands in it is laid out by layout.py.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cost.bill import Bill
from cost.layout import Format, lay_out
from cost.table import document

_STYLE = Path(__file__).with_name("page.css")


def bill_page(bill: Bill) -> str:
    """The bill with its charts and problems as a page."""
    figures = tuple(figure for part in bill.parts for figure in part.draw_figures())
    fragment = lay_out(replace(document(bill), figures=figures), Format.HTML)
    return page(f"Cost of {bill.spec.name}", [_problems(bill), fragment])


def page(title: str, fragments: Iterable[str]) -> str:
    """The fragments of HTML as one document under the title."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # A page without an icon makes a browser ask for one.
            '<link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title>",
            f"<style>\n{_STYLE.read_text(encoding='ascii')}</style>",
            "</head>",
            f"<body><main><h1>{html.escape(title)}</h1>",
            *fragments,
            "</main></body>",
            "</html>",
            "",
        )
    )


def _problems(bill: Bill) -> str:
    items = [
        f'<li class="{problem.level}">{html.escape(str(problem))}</li>' for problem in bill.problems
    ]
    return f'<ul class="problems">{"".join(items)}</ul>' if items else ""
