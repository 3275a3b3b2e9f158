"""`soperator pause`: takes the workers out of a stack file; `pulumi up` acts on it."""

from __future__ import annotations

from infra import whole_file
from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, StackOption


def command(stack: StackOption = DEFAULT_STACK) -> None:
    """Pause a stack: no workers, and no cost for them, until it is resumed."""
    switch(stack, paused=True)


def _not_pulled(stack: str) -> list[str]:
    """Jobs that were submitted from here and have no record here."""
    from cost.run_record import FILE_NAME
    from infra.jobs.history import run_folder, submissions

    state = context.state_root()
    return [
        each.job_id
        for each in submissions(state, stack)
        if not (run_folder(state, stack, each.job_id) / FILE_NAME).is_file()
    ]


def switch(stack: str, *, paused: bool) -> None:
    """Sets the pause switch of a stack file once, and says what that saves or costs."""
    from cost.pause import pause_saving
    from infra.prices.book import price_book
    from stacks.load import STACKS_DIR
    from stacks.pause import set_paused

    spec = context.spec(stack)
    saving = pause_saving(spec, price_book(spec, context.state_root()))
    path = STACKS_DIR / f"Pulumi.{stack}.yaml"
    text = path.read_text(encoding="utf-8")
    changed = set_paused(text, paused=paused)
    state, verb = ("paused", "saves") if paused else ("running", "costs")
    if changed == text:
        output.note(f"{stack}: already declared as {state}; it {verb} {saving}")
    else:
        whole_file.write(path, changed)
        output.note(f"{stack}: declared as {state} in {path.name}; this {verb} {saving}")
    if paused and (left := _not_pulled(stack)):
        output.note(
            f"{stack}: while it is paused nothing can be fetched; not pulled yet: jobs "
            f"{', '.join(left)} (soperator pull ID --stack {stack})"
        )
    output.note(f"{stack}: to make it so: pulumi up --stack {stack}")
