"""Who makes the next proposal: a bandit over language models and the search without one.

Few pulls, noisy rewards that are mostly nothing, results that come late, and arms whose prices differ: that
is what Thompson sampling is good at (Chapelle and Li, "An Empirical Evaluation of Thompson Sampling",
2011, also for late results). Each arm has a Beta belief on the reward of a pull, in which a reward between 0
and 1 counts in part as a success and for the rest as a failure (after Agrawal and Goyal, "Analysis of
Thompson Sampling", 2012, without their coin). Old pulls count less, since what is left to gain and what helps
change (Raj and Kalyani, "Taming Non-stationary Bandits", arXiv 1707.09727). A value is drawn from each belief
and divided by what a pull of the arm costs, and the largest wins (Xia and others, "Thompson Sampling for
Budgeted Multi-Armed Bandits", 2015). Every arm is pulled once before any is preferred. Until its own results
speak, an arm is thought to give what all arms give on average: rewards are small, and a belief that begins
with one half would spend a budget of forty pulls on exploring.

A gain is the logarithm of the parent's time over the candidate's, verified, or nothing. Its reward is
g / (g + s) with s the median of the last gains of all arms: one very large gain does not make all later ones
worth nothing, and the reward needs no scale that would fit only one kernel.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["ArmRecord", "Pull", "arm_records", "choose_arm"]

FADE = 0.97
"""What a pull counts after one more of any arm; half after 23."""

_PRIOR = 2.0  # pulls that the mean of all arms counts in the belief of one
_SCALE_OVER = 20  # gains
_FIRST_SCALE = 0.05


@dataclass(frozen=True, slots=True)
class Pull:
    """A proposal, or an attempt at one.

    Attributes:
        arm: Who made it.
        gain: Verified; 0 if it gave none, None while nobody knows.
        micro_usd: What it cost, in millionths of a dollar; None if nobody knows.
    """

    arm: str
    gain: float | None
    micro_usd: int | None = 0


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """What is known of an arm.

    Attributes:
        arm: Its name.
        pulls: How often it was pulled.
        waiting: Pulls without a result yet.
        gains: Pulls that gained something.
        reward: The mean reward, old pulls counting less; from 0 to 1.
        micro_usd: The mean cost of a pull; None if nobody knows.
        cost: What a pull takes, as a multiple of one that costs no money.
    """

    arm: str
    pulls: int = 0
    waiting: int = 0
    gains: int = 0
    reward: float = 0.0
    micro_usd: float | None = 0.0
    cost: float = 1.0


@dataclass(slots=True)
class _Belief:
    won: float = 0.0
    lost: float = 0.0

    def draw(self, prior: float, source: random.Random) -> float:
        won, lost = self.won + _PRIOR * prior, self.lost + _PRIOR * (1.0 - prior)
        return source.betavariate(won, lost)


def choose_arm(
    arms: Sequence[str], pulls: Sequence[Pull], seed: int, slot_micro_usd: float | None = None
) -> str:
    """Chooses the arm of the next pull; the same story and seed give the same arm.

    Args:
        arms: Those that can be pulled now, in the order in which they are tried first.
        pulls: All that was pulled, oldest first, also by arms that are not there any more.
        seed: Of the draws.
        slot_micro_usd: The money that is worth one evaluation; None where money does not count.

    Raises:
        ValueError: There is no arm.
    """
    if not arms:
        raise ValueError("no arm can be pulled")
    tried = {pull.arm for pull in pulls}
    for arm in arms:
        if arm not in tried:
            return arm
    records = arm_records(arms, pulls, slot_micro_usd)
    beliefs = _beliefs(pulls)
    source = random.Random(f"arm {seed} {len(pulls)}")
    # Drawn in the order of names, so that the order of the configuration is no matter.
    prior = _mean_reward(beliefs.values())
    drawn = {arm: beliefs[arm].draw(prior, source) for arm in sorted(set(arms))}
    return max(arms, key=lambda arm: drawn[arm] / records[arm].cost)


def arm_records(
    arms: Sequence[str], pulls: Sequence[Pull], slot_micro_usd: float | None = None
) -> dict[str, ArmRecord]:
    """Returns what is known of each arm, those that were only pulled earlier at the end."""
    beliefs = _beliefs(pulls)
    names = tuple(dict.fromkeys((*arms, *(pull.arm for pull in pulls))))
    mine = {arm: [pull for pull in pulls if pull.arm == arm] for arm in names}
    money = {arm: _mean_money(mine[arm]) for arm in names}
    # Nobody knows what a model without a price costs: as much as the dearest that has one.
    dearest = max((known for known in money.values() if known is not None), default=0.0)
    found: dict[str, ArmRecord] = {}
    for arm in names:
        belief = beliefs.get(arm, _Belief())
        weight = belief.won + belief.lost
        paid = money[arm]
        spent = dearest if paid is None else paid
        found[arm] = ArmRecord(
            arm=arm,
            pulls=len(mine[arm]),
            waiting=sum(pull.gain is None for pull in mine[arm]),
            gains=sum(bool(pull.gain) for pull in mine[arm]),
            reward=belief.won / weight if weight else 0.0,
            micro_usd=paid,
            cost=1.0 + (spent / slot_micro_usd if slot_micro_usd else 0.0),
        )
    return found


def _beliefs(pulls: Sequence[Pull]) -> dict[str, _Belief]:
    """Adds up faded successes and failures by arm; pulls without a result tell nothing."""
    gains = [pull.gain for pull in pulls if pull.gain]
    scale = median(gains[-_SCALE_OVER:]) if gains else _FIRST_SCALE
    beliefs = {pull.arm: _Belief() for pull in pulls}
    weight = 1.0
    for pull in reversed(pulls):
        if pull.gain is not None:
            reward = pull.gain / (pull.gain + scale)
            beliefs[pull.arm].won += weight * reward
            beliefs[pull.arm].lost += weight * (1.0 - reward)
        weight *= FADE
    return beliefs


def _mean_reward(beliefs: Iterable[_Belief]) -> float:
    """The mean reward of all arms, with one success and one failure before any result."""
    won = lost = 1.0
    for belief in beliefs:
        won, lost = won + belief.won, lost + belief.lost
    return won / (won + lost)


def _mean_money(pulls: Sequence[Pull]) -> float | None:
    known = [pull.micro_usd for pull in pulls if pull.micro_usd is not None]
    if known:
        return sum(known) / len(known)
    return None if pulls else 0.0
