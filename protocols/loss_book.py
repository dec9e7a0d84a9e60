"""What the training loss has been: first step, now, and the mean of the run's last tenth.

Fed by the micro-batches that this peer has seen end. A head knows its own share exactly; others see
what passed through them. Bounded: of single steps only the last STEPS_KEPT are remembered.
"""

from __future__ import annotations

STEPS_KEPT = 512
EMA_WEIGHT = 0.05
"""Of one micro-batch in the smoothed loss. A guess, never tuned."""


class LossBook:
    """Losses are nats per token; `loss_sum` is a sum over samples of the mean loss per token."""

    def __init__(self, total_steps: int) -> None:
        self._tail_from = total_steps - -(-total_steps // 10)
        self._sums: dict[int, tuple[float, int]] = {}
        self._tail_sum, self._tail_samples = 0.0, 0
        self._newest_step = -1
        self.first: float | None = None
        self.ema: float | None = None
        self.samples = 0

    def add(self, step: int, loss_sum: float, samples: int) -> None:
        loss, count = self._sums.get(step, (0.0, 0))
        self._sums[step] = (loss + loss_sum, count + samples)
        self.samples += samples
        mean = loss_sum / samples
        self.ema = mean if self.ema is None else self.ema + EMA_WEIGHT * (mean - self.ema)
        if step >= self._tail_from:
            self._tail_sum += loss_sum
            self._tail_samples += samples
        if step == 0:
            self.first = self.of_step(0)
        if step > self._newest_step:
            self._newest_step = step
            for old in [known for known in self._sums if known <= step - STEPS_KEPT]:
                del self._sums[old]

    def of_step(self, step: int) -> float | None:
        """Mean over the samples seen of that step so far."""
        loss, count = self._sums.get(step, (0.0, 0))
        return loss / count if count else None

    @property
    def latest(self) -> float | None:
        """Of the newest step of which anything was seen."""
        return self.of_step(self._newest_step)

    @property
    def last_tenth(self) -> float | None:
        """Mean over the last tenth of the run's steps."""
        return self._tail_sum / self._tail_samples if self._tail_samples else None
