"""Tuned settings: a file for each agent, a row for each environment that goes well with it."""

from __future__ import annotations

from .. import tuned
from ..tuned import Tuned
from . import (
    bc,
    c51,
    cql,
    crr,
    d4pg,
    dqn,
    grpo,
    impala,
    iql,
    mpo,
    muzero,
    ppo,
    qrdqn,
    r2d2,
    rainbow,
    sac,
    td3,
)

SETTINGS: tuple[Tuned, ...] = (
    *bc.SETTINGS,
    *c51.SETTINGS,
    *cql.SETTINGS,
    *crr.SETTINGS,
    *d4pg.SETTINGS,
    *dqn.SETTINGS,
    *grpo.SETTINGS,
    *impala.SETTINGS,
    *iql.SETTINGS,
    *mpo.SETTINGS,
    *muzero.SETTINGS,
    *ppo.SETTINGS,
    *qrdqn.SETTINGS,
    *r2d2.SETTINGS,
    *rainbow.SETTINGS,
    *sac.SETTINGS,
    *td3.SETTINGS,
)


def find(agent: str, env: str) -> Tuned | None:
    """The tuned settings, or None where there are none."""
    return tuned.find(SETTINGS, agent, env)
