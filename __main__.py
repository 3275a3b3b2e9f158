"""The program: stack file -> spec -> checks -> bill and components -> outputs."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env

from cost.bill.bill import bill, left_running_lines, render
from cost.diff.diff import cost_outputs
from cost.diff.table import change
from cost.prices.book import PriceBookError, price_age_problems
from infra.clients.passphrase import public_problem
from infra.components.stack import Stack, deployed_outputs
from infra.jobs.nodes import describe_jobs
from infra.jobs.recipes import load_fit_problems, notice_problems, search_problems
from infra.jobs.records import load_records, with_history
from infra.operate.preflight.ask import ask, doubts, in_short, refusal
from infra.operate.prices import LivePriceError, price_book
from infra.providers.nebius.adoption import DiscoveryError, discovered
from infra.providers.nebius.sdk import loopback_target
from infra.render.delivery import recipe_problems
from infra.state import State
from stacks.errors import Level
from stacks.load import STACKS_DIR, StackError, load_config
from stacks.schedule import reminders

ROOT = Path(__file__).resolve().parent
SECRETS = "soperator-secrets"
"""Namespace of configuration that the engine encrypts; nothing of it is part of a spec."""
SLACK_WEBHOOK = "slack_webhook_url"
STATE = Path(os.environ.get("SOPERATOR_STATE") or ROOT / ".soperator")


def main() -> None:
    """Declares the stack, or refuses it with every problem at once."""
    try:
        # The official language host hands over the environment, the automation server a variable.
        spec = load_config(CONFIG.get() or get_config_env(), pulumi.get_stack())
        if spec.attached is not None:
            raise pulumi.RunError(
                f"{spec.name}: is attached to a cluster that others run, so there is nothing to "
                f"build; submit to it: soperator submit JOB --stack {spec.name}"
            )
        book = price_book(spec, STATE)
    except (StackError, PriceBookError, LivePriceError) as error:
        raise pulumi.RunError(str(error)) from error
    damaged: list[str] = []
    records = load_records(STATE, spec.name, damaged.append)
    stack_bill = bill(with_history(spec, STATE, damaged.append), book, records)
    # The engine prints the level itself.
    texts = [str(problem).removeprefix(f"{Level.ERROR}: ") for problem in stack_bill.errors]
    texts += [*recipe_problems(ROOT, spec), *load_fit_problems(ROOT, spec)]
    texts += notice_problems(ROOT, spec, records)
    if texts := texts or search_problems(ROOT, spec):
        raise pulumi.RunError("\n".join(texts))
    deployed = deployed_outputs()
    cost_diff = change(stack_bill, deployed)
    if cost_diff.errors:
        texts = (str(problem).removeprefix(f"{Level.ERROR}: ") for problem in cost_diff.errors)
        raise pulumi.RunError("\n".join(texts))
    is_real = loopback_target() is None
    if is_real and (reason := public_problem(STACKS_DIR / f"Pulumi.{spec.name}.yaml")):
        raise pulumi.RunError(reason)
    preflight = ask(spec, project=pulumi.get_project())
    if reason := refusal(preflight):
        pulumi.log.info(f"\n{render(stack_bill)}")
        raise pulumi.RunError(reason)
    warnings = [str(problem).removeprefix(f"{Level.WARNING}: ") for problem in stack_bill.warnings]
    # An age depends on the day: it is told, but is no output, which would change by itself.
    used = [price for line in stack_bill.estimate.components for price in line.prices]
    now = datetime.now(UTC)
    ages = [problem.message for problem in price_age_problems(spec, used, now.date())]
    steps = [str(problem).removeprefix(f"{Level.WARNING}: ") for problem in cost_diff.warnings]
    told_now = (*ages, *damaged, *doubts(preflight), *reminders(spec, now))
    for warning in (*map(str, cost_diff.losses), *steps, *warnings, *told_now):
        pulumi.log.warn(warning)
    taken = cost_diff.rollout.slurm_nodes
    running = describe_jobs(spec.name, deployed, taken, State(STATE).user_key) if taken else ""
    ends = "\n".join(left_running_lines(spec, book, stack_bill.estimate, now))
    pulumi.log.info(
        f"\n{render(stack_bill)}\n{ends}\n{cost_diff.render()}{running}\n{in_short(preflight)}"
    )

    try:
        spec = discovered(spec)
    except DiscoveryError as error:
        raise pulumi.RunError(str(error)) from error
    webhook = pulumi.Config(SECRETS).get_secret(SLACK_WEBHOOK)
    if spec.soperator.slack_notifier and webhook is None:
        raise pulumi.RunError(
            f"{spec.name}.soperator.slack_notifier: no webhook to tell; set it with "
            f"'pulumi config set --secret {SECRETS}:{SLACK_WEBHOOK} --stack {spec.name}', which "
            "asks for it"
        )
    stack = Stack(
        spec,
        burn=stack_bill.estimate,
        root=ROOT,
        build_folder=STATE / "build",
        slack_webhook_url=webhook,
        rolls_in_stages=cost_diff.rollout.is_staged,
    )
    for name, value in stack.outputs.items():
        pulumi.export(name, value)
    pulumi.export("cost", cost_outputs(stack_bill))
    pulumi.export("warnings", warnings)


main()
