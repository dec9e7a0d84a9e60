"""When this peer takes its inner steps. The clock rides on the micro-batches: nobody counts.

Each micro-batch that is trained on carries a step tag, the number of the inner step that it belongs
to, counted over the whole run (RunShape.step_of; algorithms.md 3.1). Fast and slow peers so take
the same steps, on different numbers of samples, without a barrier or a wall clock. The rules:

  * the gradients accumulated so far become a step as soon as this peer holds a micro-batch of a
    later tag and none of theirs or an earlier one: one in flight is the plain loop, step for step;
  * at the latest when a micro-batch of a later tag is about to be accumulated, before it is;
  * the step's number, which its learning rate follows, is the tag of what it was made of. Tags that
    never came this way are jumped over: one optimiser step, not several;
  * a micro-batch whose step has been taken already counts into the next one that is taken;
  * nothing accumulated, no step;
  * the end of a round takes what is pending as one last step.

So the numbers of the steps taken only ever rise. The owner calls `reached` and `left` for every
micro-batch that it holds, `before` and `accumulated` around each job that adds to the gradient.
"""

from __future__ import annotations


class StepClock:
    """Numbers only; `int | None` returned is the step to take now, before anything else."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        """Tag to how many micro-batches of it are here."""
        self._floor = 0
        """The lowest step that has not been taken."""
        self.step = 0
        """The step that the pending gradients belong to; means nothing while none are pending."""
        self.pending = 0
        """Micro-batches accumulated since the last step."""
        self.taken = 0
        """Steps taken since the start."""

    @property
    def last_step(self) -> int | None:
        """The number of the last step taken or ended by a round; None before the first."""
        return self._floor - 1 if self._floor else None

    def reached(self, tag: int) -> None:
        """A micro-batch of `tag` is here now. Ask `due` next."""
        self._held[tag] = self._held.get(tag, 0) + 1

    def left(self, tag: int) -> None:
        """It is no longer here, however it ended. Ask `due` next."""
        self._held[tag] -= 1
        if not self._held[tag]:
            del self._held[tag]

    def due(self) -> int | None:
        """The step to take because only micro-batches of later tags are here."""
        if self.pending and self._held and min(self._held) > self.step:
            return self._take()
        return None

    def must_step_before(self, tag: int) -> bool:
        """Whether accumulating a micro-batch of `tag` needs a step first."""
        return self.pending > 0 and tag > self.step

    def before(self, tag: int) -> int | None:
        """The step to take before a micro-batch of `tag` is accumulated."""
        return self._take() if self.must_step_before(tag) else None

    def accumulated(self, tag: int) -> int:
        """One more micro-batch is pending, after `before` was obeyed. Returns its step."""
        assert not self.must_step_before(tag)
        if not self.pending:
            self.step = max(tag, self._floor)
        self.pending += 1
        return self.step

    def revoked(self, step: int) -> None:
        """What `accumulated` had put into `step` failed after all."""
        if self.pending and step == self.step:
            self.pending -= 1

    def finish(self, next_step: int) -> int | None:
        """The round ends; the next one's steps begin with `next_step`."""
        step = self._take() if self.pending else None
        self._floor = max(self._floor, next_step)
        return step

    def lost(self) -> None:
        """The accumulated gradients are gone with the compute worker."""
        self.pending = 0

    def _take(self) -> int:
        self.pending = 0
        self.taken += 1
        self._floor = self.step + 1
        return self.step
