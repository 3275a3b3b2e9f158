"""The price books as a page: every reading of every SKU with its source and date."""

from __future__ import annotations

from pathlib import Path

from cost.price import Price
from cost.price_book import PRICES_DIR
from cost.price_file import read_price_file
from infra.docs_site.markdown import cell


def price_page(folder: Path = PRICES_DIR) -> str:
    """Every book of the folder as Markdown, in US dollars without tax."""
    lines = [
        "# Price book",
        "",
        (
            "Every reading that is kept, US dollars without tax; the newest of a region is used. "
            "Made from `cost/prices/`; how layers win over each other is in [Prices](../prices.md)."
        ),
    ]
    for path in sorted(folder.glob("*.yaml")):
        book = read_price_file(path)
        lines += ["", f"## {book.name}", "", cell(book.caveat), ""]
        lines += ["| SKU | USD | per | region | date | source |", "|---|---|---|---|---|---|"]
        lines += [_row(price) for readings in book.readings.values() for price in readings]
    return "\n".join(lines) + "\n"


def _row(price: Price) -> str:
    return (
        f"| `{price.sku}` | {price.usd:f} | {price.unit} | {price.region or 'all'} | "
        f"{price.dated} | {cell(price.source)} |"
    )
