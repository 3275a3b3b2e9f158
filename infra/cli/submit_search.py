"""`soperator submit NAME` of a search: one array, what is left of its trials, within its limit.

Owns what is printed of it. What is left and what is sent are infra/jobs/search.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from infra.cli import context, interrupts, output, submission
from infra.cli.output import Format
from infra.cli.submit_pipeline import Options

if TYPE_CHECKING:
    from infra.clients.pulumi import StackOutputs
    from stacks.search_spec import SearchSpec
    from stacks.spec import StackSpec


def run(
    spec: StackSpec,
    outputs: StackOutputs,
    wanted: SearchSpec,
    *,
    sets: Sequence[str],
    options: Options,
    identity: Path | None,
) -> None:
    """Submits the trials that are left, or shows the sbatch and what all of them cost."""
    from cost.runs.searches import plain_search, search_line
    from infra.jobs import ledger, recipes, search, submit, submit_once
    from infra.jobs import transfer as code
    from infra.jobs.history import Earlier
    from infra.jobs.ledger import open_books
    from infra.render.delivery import hash_files
    from infra.render.sbatch import array_option

    submit.job_args(sets)
    job = next(each for each in spec.jobs if each.name == wanted.job)
    recipes.refuse_wrong_trials(context.CHECKOUT, job, sets, wanted.settings)
    books = open_books(spec, context.state_root(), output.note)
    files = context.local_code(spec.name)
    whole = search.order_search(books, wanted, files, sets)
    output.note(search_line(whole.cost))
    with (
        context.connect(outputs, identity) as connection,
        nullcontext() if options.dry_run else submission.alone(connection, outputs),
    ):
        earlier = Earlier(
            shell=connection,
            outputs=outputs,
            state=context.state_root(),
            code_hash=hash_files(files),
            say=output.note,
        )
        ordered = whole
        if not options.again:
            numbers = search.left(wanted, earlier, sets)
            if len(numbers) < len(whole.numbers):
                done = len(whole.numbers) - len(numbers)
                output.note(f"{wanted.name}: {done} trials are done or on their way")
                if not numbers:
                    output.note(
                        f"nothing is left: soperator leaderboard {wanted.name} -s {spec.name} "
                        "ranks them; --again submits all once more"
                    )
                    if options.format is Format.JSON:
                        output.print_json({"job_id": None, **plain_search(whole.cost)})
                    return
                ordered = search.order_search(books, wanted, files, sets, numbers)
                output.note(search_line(ordered.cost))
        if options.dry_run:
            for line in ledger.budget_lines(books, ordered.cost.run, datetime.now(UTC)):
                output.note(line)
            array = array_option(wanted, ordered.numbers)
            store = context.run_config_store(outputs)
            text = submit.dry_run(
                connection,
                outputs,
                wanted.name,
                code_hash=earlier.code_hash,
                exported=submit.environment(
                    outputs,
                    earlier.code_hash,
                    git_revision=context.git_revision(),
                    own=submit.TaskFiles(),
                    tasks={
                        number: submit_once.task_files(each, store)
                        for number, each in ordered.orders.items()
                    },
                ),
                sets=sets,
                after=options.after,
                array=array,
            )
            if options.format is Format.JSON:
                output.print_json({"script": text, **plain_search(ordered.cost)})
            else:
                print(text, end="")
            search.refuse_over(ordered)
            return
        if options.sync:
            code.send(connection, outputs.code_path, files)
        with interrupts.held():
            sent = search.dispatch_search(
                ordered,
                books,
                connection,
                outputs,
                state=context.state_root(),
                code_hash=earlier.code_hash,
                git_revision=context.git_revision(),
                say=output.note,
                after=options.after,
                force=options.force,
                store=context.run_config_store(outputs),
                once=not options.again and options.after is None,
            )
    made = sent.submission
    if options.format is Format.JSON:
        values = {**asdict(made), "is_earlier": sent.is_earlier}
        output.print_json({**values, **plain_search(ordered.cost)})
        return
    print(made.job_id)
    output.note(
        f"{wanted.name} is array {made.job_id}; ranks as trials end: soperator leaderboard "
        f"{wanted.name} -s {spec.name}"
    )
