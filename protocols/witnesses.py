"""What neighbours saw replicas work on: nobody's claim in a mix weighs more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swarmd.protocols.ids import PeerId
from swarmd.protocols.run_shape import RunShape

ROUNDS_REMEMBERED = 4


class Witnesses:
    """Of a few rounds."""

    def __init__(self, shape: RunShape) -> None:
        self._shape = shape
        self._samples: dict[int, dict[PeerId, int]] = {}
        """Round to replica to samples."""

    def heard(self, round_number: int, samples: Mapping[PeerId, int]) -> None:
        self._samples[round_number] = dict(samples)
        for old in sorted(self._samples)[:-ROUNDS_REMEMBERED]:
            del self._samples[old]

    def weight_caps(self, round_number: int, replicas: Iterable[PeerId]) -> dict[PeerId, int]:
        """Who was seen by nobody is believed up to what the round has."""
        shape = self._shape
        whole = shape.micro_batches_of_round(round_number) * shape.micro_batch_samples
        seen = self._samples.get(round_number, {})
        return {peer: min(whole, seen.get(peer, whole)) for peer in replicas}
