"""`soperator draw`: the architecture of a declared stack as a picture."""

from __future__ import annotations

from infra.cli import context
from infra.cli.context import StackOption
from infra.cli.output_file import OutputOption, put
from infra.state import DEFAULT_STACK


def command(stack: StackOption = DEFAULT_STACK, file: OutputOption = None) -> None:
    """Draw a declared stack as SVG: nodes, network, filesystems, queues, doors; asks nothing."""
    from infra.render.stack_drawing import stack_svg

    put(stack_svg(context.spec(stack)), file)
