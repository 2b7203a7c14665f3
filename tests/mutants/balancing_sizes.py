"""Wrong balancers that are right at the usual numbers of experts and tokens.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from reference_numpy.balancing import bin_counts
from reference_numpy.routing import combine_weights, scores, top_k_ids
from tests.mutants.balancing import ExactUpdate
from tests.mutants.balancing_state import Keeps, Kept


class Selects(Kept):
    """Counts right, and routes by a selection of its own, ``select``."""

    def observe(self, logits_MN: Array, **options: Any) -> Routing:
        routing = super().observe(logits_MN, **options)
        s_MN = scores(logits_MN)
        ids_MK = self.select(s_MN + self.bias, self.top_k)
        return routing._replace(expert_ids=ids_MK, weights=combine_weights(s_MN, ids_MK))

    def select(self, biased_MN: Array, top_k: int) -> Array:
        return top_k_ids(biased_MN, top_k)


class HalfWarpLeftOut(Keeps):
    """Two experts a lane, 64 a step: where 32 are left over at the end, they are no candidates."""

    killed_by = "QB-SIZES"

    class balancer_class(Selects):  # noqa: N801
        def select(self, biased_MN: Array, top_k: int) -> Array:
            n = biased_MN.shape[1]
            if n % 64 == 32 and top_k <= n - 32 > 0:
                biased_MN = np.where(np.arange(n) < n - 32, biased_MN, -np.inf)
            return top_k_ids(biased_MN, top_k)


class PaddedWithZeros(Keeps):
    """From 65 experts to 127, those up to 128 have the biased score 0."""

    killed_by = "QB-SIZES"

    class balancer_class(Selects):  # noqa: N801
        def select(self, biased_MN: Array, top_k: int) -> Array:
            n = biased_MN.shape[1]
            if not 64 < n < 128:
                return top_k_ids(biased_MN, top_k)
            padded_MP = np.pad(biased_MN, ((0, 0), (0, 128 - n)))
            return np.minimum(top_k_ids(padded_MP, top_k), n - 1)


class FourFromTwoHalves(Keeps):
    """For k = 4, the best three of each half are compared."""

    killed_by = "QB-SIZES"

    class balancer_class(Selects):  # noqa: N801
        def select(self, biased_MN: Array, top_k: int) -> Array:
            half = biased_MN.shape[1] // 2
            if top_k != 4 or half < 16:
                return top_k_ids(biased_MN, top_k)
            first, second = top_k_ids(biased_MN[:, :half], 3), top_k_ids(biased_MN[:, half:], 3)
            ids = np.concatenate([first, second + half], axis=1)
            best = top_k_ids(np.take_along_axis(biased_MN, ids, 1), 4)
            return np.take_along_axis(ids, best, 1)


class RoutesSixtyFourRows(Keeps):
    """More than 512 experts leave shared memory for 64 tokens: later rows repeat the first ones."""

    killed_by = "QB-SIZES"

    class balancer_class(Selects):  # noqa: N801
        def select(self, biased_MN: Array, top_k: int) -> Array:
            ids_MK = top_k_ids(biased_MN, top_k)
            if biased_MN.shape[1] <= 512:
                return ids_MK
            return ids_MK[np.arange(len(ids_MK)) % 64]


class CountsHundredTwentyEightRows(Keeps):
    """More than 512 experts leave room for 128 tokens of a micro-batch; others are not counted."""

    killed_by = "QB-SIZES"

    class balancer_class(Kept):  # noqa: N801
        def add(self, r_MN: Array) -> None:
            super().add(r_MN[:128] if r_MN.shape[1] > 512 else r_MN)


class CountsInEightBits(Keeps):
    """From 64 experts on, 512 tokens are counted in eight bits; beyond 255, in the last bin."""

    killed_by = "QB-SIZES"

    class balancer_class(Kept):  # noqa: N801
        def add(self, r_MN: Array) -> None:
            for first in range(0, len(r_MN), 512):
                block_MN = r_MN[first : first + 512]
                counts_NB = bin_counts(block_MN, *self.range(), self.num_bins)
                if r_MN.shape[1] >= 64:
                    counts_NB = np.minimum(counts_NB, 255)
                    counts_NB[:, -1] += len(block_MN) - counts_NB.sum(axis=1)
                self.histogram = self.histogram + counts_NB


class UpdatesFromAThousandRows(ExactUpdate):
    """From 256 experts on the exact update reads 1,024 tokens, from 512 on 256."""

    killed_by = "QB-SIZES"

    def valid(self, logits: Array, mask: Array) -> Array:
        return logits[mask]

    def required(self, s_MN: Array, alpha_M: Array) -> Array:
        r_MN = super().required(s_MN, alpha_M)
        n = r_MN.shape[1]
        return r_MN[: 256 if n >= 512 else 1024] if n >= 256 else r_MN
