"""The dashboard of what a stack costs now, for what, and where that leads. Pure."""

from __future__ import annotations

from cost.burn import Burn
from cost.price import HOURS_PER_MONTH
from infra.render.monitoring.objects import NAME
from infra.render.monitoring.panels import Dashboard, Panel
from infra.render.monitoring.records import (
    AROUND_USD,
    BUDGET_USD,
    JOBS_USD,
    NODE_USD,
    STACK_USD,
    STATE_USD,
    usd_of_a_day,
)


def cost_dashboard(burn: Burn) -> Dashboard:
    """What the stack costs now, for what, and where that leads."""
    says = f"US dollars without tax, {burn.prices}."
    least = " (at least)" if burn.is_lower_bound else ""
    if burn.unpriced_nodesets:
        says += f" Without nodes of {', '.join(burn.unpriced_nodesets)}: no price is known."
    elif burn.is_lower_bound:
        says += " Without lines of the bill that have no price: `soperator cost` lists them."
    trained = "sum(rate(train_tokens_total[15m])) * 3600 / 1e6"
    written = (
        "(sum(rate(serve_output_tokens_total[15m])) or vector(0)) * 3600 / 1e6 "
        "+ (sum(rate(vllm:generation_tokens_total[15m])) or vector(0)) * 3600 / 1e6"
    )
    idle = f'sum({STATE_USD}{{state_base!~"ALLOCATED|MIXED"}})'
    numbers = [
        ("Now, an hour", STACK_USD),
        ("A month at this pace", f"{STACK_USD} * {HOURS_PER_MONTH}"),
        ("Nodes without jobs, an hour", idle),
        ("Last 24 hours, as far as seen", usd_of_a_day(STACK_USD)),
    ]
    if burn.budget_usd_per_month is not None:
        numbers += [
            (
                "Jobs a month at the pace of a day",
                f"{usd_of_a_day(JOBS_USD)} * {HOURS_PER_MONTH} / 24",
            ),
            ("Budget of jobs a month", BUDGET_USD),
        ]
    return Dashboard(
        uid=f"{NAME}-cost",
        title="Stack: cost burn",
        panels=(
            *(
                Panel(
                    title=title if expression == BUDGET_USD else f"{title}{least}",
                    unit="currencyUSD",
                    kind="stat",
                    says=says,
                    asks=((expression, ""),),
                    width=4,
                    height=4,
                )
                for title, expression in numbers
            ),
            Panel(
                title=f"US dollars an hour{least}",
                unit="currencyUSD",
                stacked=True,
                says=f"{says} A node that a job holds in part counts whole.",
                width=24,
                asks=(
                    (f"max({AROUND_USD})", "around the workers"),
                    (STATE_USD, "{{nodeset}} {{state_base}}"),
                ),
            ),
            Panel(
                title="GPUs by state of their node",
                unit="short",
                stacked=True,
                asks=(
                    (
                        "sum by (state_base) (rate(slurm_node_gpu_seconds_total[5m]))",
                        "{{state_base}}",
                    ),
                ),
            ),
            Panel(
                title=f"US dollars for a million tokens, of what jobs hold{least}",
                unit="currencyUSD",
                says=f"{says} All jobs together: exact while one kind of job runs.",
                asks=(
                    (f"{JOBS_USD} / ({trained} > 0)", "trained"),
                    (f"{JOBS_USD} / (({written}) > 0)", "written"),
                ),
            ),
            Panel(
                title="Price of a node, an hour",
                unit="currencyUSD",
                says=says,
                asks=((f"max by (nodeset, priced) ({NODE_USD})", "{{nodeset}}, {{priced}}"),),
            ),
            Panel(
                title="Alerts that fire",
                unit="short",
                asks=(
                    (
                        'sum by (alertname) (ALERTS{alertstate="firing",alertname=~"Soperator.*"})',
                        "{{alertname}}",
                    ),
                ),
            ),
        ),
    )
