"""What one reference chat costs and how long its answers take: chat_cost(chat, speed, ...).

A serving node that writes r and reads p tokens a second is busy O/r + P/p seconds with a chat of O
output tokens and P prompt tokens that no cache holds. Everything here follows from that time: the
chats that a day has room for, the wait for an answer, the dollars. Owns no prices and no layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cost.speeds import Speed
from stacks.cost_spec import ChatSpec

SECONDS_PER_HOUR: Final = Decimal(3600)
HOURS_PER_DAY: Final = Decimal(24)
SECONDS_PER_DAY: Final = SECONDS_PER_HOUR * HOURS_PER_DAY
MILLION: Final = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyCost:
    """US dollars an hour of what chats can be charged with."""

    cluster_low_usd: Decimal
    """The whole cluster at its smallest size that has the serving nodes."""
    cluster_high_usd: Decimal
    serving_usd: Decimal | None
    """The serving nodes alone, without their disks; None when that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCost:
    """One row of the scenario table."""

    speed: Speed
    tokens_per_day: Decimal
    """Output tokens a day of the serving nodes at full load, reading included where it counts."""
    chats_per_day: Decimal
    """Chats a day that the serving nodes have room for."""
    demand_per_day: Decimal | None
    """Chats a day that are asked for; None: as many as there is room for."""
    serving_nodes_needed: int
    """Nodes that the demand needs; those declared when no demand is."""
    serving_nodes: int
    answer_s: Decimal
    """Seconds until one answer is there as a whole, with the batch full."""
    max_answer_s: Decimal | None
    """The promise; None when none is made."""
    cluster_low_usd: Decimal
    """US dollars a chat when chats pay for the whole cluster at min_nodes."""
    cluster_high_usd: Decimal
    serving_usd: Decimal | None
    """US dollars a chat when they pay for the serving nodes only; None when that is not known."""
    cluster_usd_per_1m_tokens: Decimal
    """US dollars for a million output tokens, whole cluster at min_nodes."""
    serving_usd_per_1m_tokens: Decimal | None

    @property
    def utilisation(self) -> Decimal:
        """Demand over room, a ratio; over 1 when more is asked for than fits; 1 without demand."""
        if self.demand_per_day is None:
            return Decimal(1)
        return self.demand_per_day / self.chats_per_day

    @property
    def idle_share(self) -> Decimal:
        """Share of the serving time that nobody asks for and the chats still pay, 0 to 1."""
        return max(Decimal(0), 1 - self.utilisation)

    @property
    def is_over_capacity(self) -> bool:
        """Whether more chats are asked for than the serving nodes have room for."""
        return self.serving_nodes_needed > self.serving_nodes

    @property
    def meets_slo(self) -> bool | None:
        """Whether an answer is there in time; None when nothing is promised."""
        return None if self.max_answer_s is None else self.answer_s <= self.max_answer_s

    @property
    def counts_prefill(self) -> bool:
        """Whether the time to read the prompts is in the figures."""
        return self.speed.prefill_tokens_per_s is not None


def chat_cost(chat: ChatSpec, speed: Speed, hourly: HourlyCost) -> ChatCost:
    """The chat's cost at the speed: at full load, or at the declared demand where that is less."""
    tokens_per_s = effective_tokens_per_s(chat, speed)
    room = chats_per_day(chat, speed) * chat.serving_nodes
    demand = None if chat.chats_per_day is None else Decimal(chat.chats_per_day)

    def usd(usd_per_hour: Decimal) -> Decimal:
        if demand is not None and demand < room:
            return usd_per_hour * HOURS_PER_DAY / demand
        tokens_per_hour = tokens_per_s * chat.serving_nodes * SECONDS_PER_HOUR
        return usd_per_hour * chat.output_tokens / tokens_per_hour

    cluster_low = usd(hourly.cluster_low_usd)
    serving = None if hourly.serving_usd is None else usd(hourly.serving_usd)
    return ChatCost(
        speed=speed,
        tokens_per_day=tokens_per_s * SECONDS_PER_DAY * chat.serving_nodes,
        chats_per_day=room,
        demand_per_day=demand,
        serving_nodes_needed=chat.serving_nodes
        if demand is None
        else nodes_for(demand, chats_per_day(chat, speed)),
        serving_nodes=chat.serving_nodes,
        answer_s=answer_s(chat, speed),
        max_answer_s=chat.max_answer_s,
        cluster_low_usd=cluster_low,
        cluster_high_usd=usd(hourly.cluster_high_usd),
        serving_usd=serving,
        cluster_usd_per_1m_tokens=cluster_low * MILLION / chat.output_tokens,
        serving_usd_per_1m_tokens=None
        if serving is None
        else serving * MILLION / chat.output_tokens,
    )


def prompt_tokens(chat: ChatSpec) -> int:
    """Prompt tokens of one chat over all its turns, cached or not."""
    return chat.context_tokens * chat.turns


def effective_tokens_per_s(chat: ChatSpec, speed: Speed) -> Decimal:
    """Output tokens a second of one node once reading the prompts has taken its time."""
    prefill = speed.prefill_tokens_per_s
    if prefill is None:
        return speed.output_tokens_per_s
    read_s = prompt_tokens(chat) * (1 - chat.cached_share) / prefill
    return chat.output_tokens / (chat.output_tokens / speed.output_tokens_per_s + read_s)


def chats_per_day(chat: ChatSpec, speed: Speed) -> Decimal:
    """Chats a day that one serving node has room for."""
    return effective_tokens_per_s(chat, speed) * SECONDS_PER_DAY / chat.output_tokens


def answer_s(chat: ChatSpec, speed: Speed) -> Decimal:
    """Seconds for one answer of the chat when the batch is full.

    Little's law: conversations in flight over answers a second, whatever the engine's schedule.
    """
    tokens_per_answer = Decimal(chat.output_tokens) / chat.turns
    return speed.batch_size * tokens_per_answer / effective_tokens_per_s(chat, speed)


def nodes_for(demand_per_day: Decimal, room_per_node: Decimal) -> int:
    """Serving nodes that the chats a day need, at least one."""
    nodes = (demand_per_day / room_per_node).to_integral_value(ROUND_CEILING)
    return max(1, int(nodes))


def usd_on_basis(row: ChatCost, usd: Decimal, days: Decimal) -> Decimal:
    """US dollars a chat when a bill over so many days is shared by the chats that fit in them.

    Seed 000 divides $19,000 by the chats of 30 days at full load.
    """
    return usd / days / row.chats_per_day
