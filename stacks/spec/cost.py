"""What a stack declares for its bill beyond resources: chats, runs, limits, contract prices.

Money is US dollars without tax; what follows from it is computed in cost/.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum

from stacks.spec.decode import AmountOrZero, CountOrZero, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedSpeedSpec:
    """A generation speed taken from a document, used until a run record replaces it."""

    scenario: str
    """Name of the row in the chat table."""
    output_tokens_per_s: Decimal
    """Tokens written a second."""
    source: str
    """Where the speed comes from, and when."""
    engine: str | None = None
    """Engine name of a run record that may replace this row; None is never replaced."""
    batch_size: int = 1
    """Conversations generated at once; a run record must have the same to replace this row."""
    prefill_tokens_per_s: Decimal | None = None
    """Prompt tokens read a second; None: reading the prompt is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSpec:
    """The reference conversation, its demand, and where it is served."""

    model: str
    """Name of the model that answers, as run records call it."""
    context_tokens: int
    """Tokens that the model reads before each answer, history included."""
    output_tokens: int
    """Tokens that it writes in one chat, over all its turns."""
    turns: int = 1
    """Answers in one chat."""
    cached_share: AmountOrZero = Decimal(0)
    """Share of the context that a prefix cache answers, 0 to 1."""
    chats_per_day: int | None = None
    """Chats that are asked for; None: as many as the serving nodes can take."""
    max_answer_s: Decimal | None = None
    """Longest wait for one whole answer, in seconds; None: no promise is made."""
    api_models: tuple[str, ...] = ()
    """Models of the API price book to compare with, such as `openai/gpt-4o-mini`."""
    speeds: tuple[AssumedSpeedSpec, ...] = ()
    serving_nodeset: str | None = None
    """Nodeset that serves chats, for the serving-only view; None charges the cluster only."""
    serving_nodes: int = 1
    """Nodes of that nodeset that serve chats at once; the others do other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecastSpec:
    """How much a training job reads, so that its hours and dollars are known before it starts."""

    job: str
    """Name of the job."""
    tokens_per_epoch: int
    """Tokens of one pass over the training split, all ranks together."""
    epochs: Decimal = Decimal(1)
    """Passes over the training split."""
    train_tokens_per_s: Decimal | None = None
    """All ranks together; used until a run record replaces it."""
    source: str | None = None
    """Where the speed comes from; needed with a speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionSpec:
    """What preemptible nodes lose: assumed until run records measure the stall."""

    preemptions_per_node_day: AmountOrZero
    """Nodes lost a day, for each node."""
    checkpoint_stall_s: AmountOrZero
    """Seconds that training stands still for one checkpoint."""
    restart_s: AmountOrZero
    """Seconds from the loss of a node to the first step after it."""
    source: str
    """Where the numbers come from."""
    save_gb_per_s: AmountOrZero | None = None
    """GB a second that all nodes of a job write into the place of checkpoints, until one measures
    it; with it a training whose state does not fit into the notice is refused."""


class PolicyLevel(StrEnum):
    """What a broken policy does to a preview."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Limits on the bill; None sets no limit. US dollars without tax."""

    level: PolicyLevel = PolicyLevel.ERROR
    """What a broken limit does to a preview."""
    max_usd_per_hour: Decimal | None = None
    """Most that the stack may cost in an hour."""
    max_usd_per_month: Decimal | None = None
    """Most that the stack may cost in a 730-hour month."""
    max_usd_per_chat: Decimal | None = None
    """Most that one reference chat may cost."""
    on_demand_gpus: bool = True
    """False: GPU nodes must be preemptible or reserved."""
    max_idle_share: Share | None = None
    """Most of the serving capacity that may stand idle at the declared chats a day, 0 to 1."""
    max_price_age_days: int = 90
    """Prices older than this warn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """US dollars that the jobs of this stack may cost in a calendar month (UTC)."""

    usd_per_month: Decimal
    """US dollars a month, of all members together."""
    usd_per_user: Decimal | None = None
    """US dollars a month of each user's jobs."""
    usd_per_account: Decimal | None = None
    """US dollars a month of each Slurm account's jobs."""
    ledger: str | None = None
    """Folder of the login node, root's and sticky, in which members of a team without accounting
    tell each other what their jobs cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractPriceSpec:
    """A price of the user's own contract; it wins over every book."""

    sku: str
    """Name of the price in the books."""
    unit: str
    """Unit of the price, as in the books."""
    usd: AmountOrZero
    """US dollars for one unit."""
    source: str
    """Contract or offer that says so."""
    date: date
    """YYYY-MM-DD of the contract or offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSpec:
    """A limit of the project, as the console shows it; stacks/rules/quotas.py knows the names."""

    name: str
    """Name of the quota, such as `compute.instance.gpu.h100`."""
    limit: CountOrZero
    """Count, vCPUs, GPUs or, for sizes, GiB."""
