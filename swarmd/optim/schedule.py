"""The learning rate as a pure function of the step's number.

Not of a peer's own count of updates: a peer that joined late, or that jumped over a step for want
of samples, must use the same rate as everybody else at that step (algorithms.md 3.1). Linear
warm-up, then a cosine down to a share of the peak at the run's last step.
"""

from __future__ import annotations

import math

from swarmd.run_config import InnerConfig


def learning_rate(step: int, *, inner: InnerConfig, total_steps: int) -> float:
    """The rate of step `step`, counted from 0 over the whole run.

    Step 0 has a rate above 0, the first step after the warm-up the full one, the last step
    `final_lr_ratio` of it; later steps keep that.
    """
    if step < inner.warmup_steps:
        return inner.lr * (step + 1) / (inner.warmup_steps + 1)
    descent_steps = max(1, total_steps - 1 - inner.warmup_steps)
    progress = min(1.0, (step - inner.warmup_steps) / descent_steps)
    share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return inner.lr * (inner.final_lr_ratio + (1.0 - inner.final_lr_ratio) * share)
