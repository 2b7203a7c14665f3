"""Calls of the experts, forward and backward, and what the reference says of them.

Legend: M tokens, N experts, K top_k, L latent width, H hidden width, T slots of one expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import reference_numpy as reference
from properties.checks import require, within
from properties.judgement.narrow import all_narrow, fitting_cotangent, fitting_experts
from properties.judgement.sums import hull, slots_added
from properties.protocol import Array, ExpertParameters
from properties.rounding import Ball
from properties.rounding.arithmetic import REFERENCE_ROUNDOFF
from properties.strategies.arrays import laid_out
from properties.strategies.experts import ExpertInputs
from properties.subject import Subject
from reference_numpy.storage import projected, stored

__all__ = ["ExpertCall", "Gradients", "all_within", "in_parts", "near", "parts"]


class Gradients(NamedTuple):
    """Arrays that came back, or balls: those of x, of the weights and of the three projections."""

    x: Any
    weights: Any
    gate_proj: Any
    up_proj: Any
    down_proj: Any


@dataclass(frozen=True)
class ExpertCall:
    """One call: what was drawn, rounded to the formats of the subject and laid out.

    ``cotangent`` (M, L) is what the backward pass is given, all ones unless it was drawn.
    """

    subject: Subject
    x: Array
    expert_ids: Array
    weights: Array
    parameters: ExpertParameters
    beta_gate: float
    beta_up: float
    cotangent: Array

    @classmethod
    def of(cls, subject: Subject, inputs: ExpertInputs) -> ExpertCall:
        """The drawn inputs.

        An x beyond the square root of the largest number is clipped to it, and a cotangent to a
        64th of that: in a format of short range, be it that of storage, of sums or of arithmetic,
        gradients would be infinite otherwise. There projections and cotangent are halved, too,
        until everything fits.
        """
        narrow = all_narrow(subject)
        inputs = fitting_experts(narrow, inputs)
        far = np.sqrt(narrow.arithmetic.stored.largest)
        held, lie = subject.round_to_storage, inputs.layouts
        drawn = np.ones(inputs.x.shape) if inputs.cotangent is None else inputs.cotangent
        drawn = fitting_cotangent(narrow, inputs, drawn)
        return cls(
            subject,
            laid_out(held(np.clip(inputs.x, -far, far)), lie.x),
            laid_out(inputs.expert_ids, lie.expert_ids),
            laid_out(subject.round_to_routing(held(inputs.weights)), lie.weights),
            ExpertParameters(
                *(_by_columns(held(part), lie.transposed) for part in parts(inputs.parameters))
            ),
            inputs.beta_gate,
            inputs.beta_up,
            laid_out(held(np.clip(drawn, -far / 64.0, far / 64.0)), lie.cotangent),
        )

    @property
    def experts(self) -> int:
        """N."""
        return int(self.parameters.gate_proj.shape[0])

    @property
    def betas(self) -> dict[str, float]:
        """Both caps, by name."""
        return {"beta_gate": self.beta_gate, "beta_up": self.beta_up}

    @property
    def idle(self) -> Array:
        """The experts that no token chose."""
        return np.setdiff1d(np.arange(self.experts), self.expert_ids)

    # Other calls -------------------------------------------------------------------------------

    def rows(self, order: Array | slice) -> ExpertCall:
        """The same tokens in another order, or some of them."""
        return replace(
            self,
            x=self.x[order],
            expert_ids=self.expert_ids[order],
            weights=self.weights[order],
            cotangent=self.cotangent[order],
        )

    def alone(self) -> ExpertCall:
        """Every token at expert 0 alone, with weight 1."""
        tokens = self.x.shape[0]
        ids, ones = np.zeros((tokens, 1), np.int64), np.ones((tokens, 1))
        return replace(self, expert_ids=ids, weights=ones)

    def slots(self, order_MK: Array) -> ExpertCall:
        """The slots of every token in an order of its own."""
        return replace(
            self,
            expert_ids=np.take_along_axis(self.expert_ids, order_MK, axis=1),
            weights=np.take_along_axis(self.weights, order_MK, axis=1),
        )

    def relabelled(self, name_N: Array) -> ExpertCall:
        """Expert j under the name name_N[j], and its parameters in that place."""
        place_N = np.argsort(name_N)
        moved = ExpertParameters(*(part[place_N] for part in parts(self.parameters)))
        return replace(self, expert_ids=name_N[self.expert_ids], parameters=moved)

    # What comes back ---------------------------------------------------------------------------

    def result(self) -> Array:
        """The weighted sum (M, L)."""
        return self.subject.experts(
            self.x, self.expert_ids, self.weights, self.parameters, **self.betas
        )

    def gradients(self) -> Gradients:
        """Those of sum(cotangent * result)."""
        d_x, d_weights, d_parameters = self.subject.experts_vjp(
            self.x, self.expert_ids, self.weights, self.parameters, self.cotangent, **self.betas
        )
        return Gradients(d_x, d_weights, *parts(d_parameters))

    # What may come back ------------------------------------------------------------------------

    def expected(self) -> Any:
        """The reference's dense evaluation, as a ball."""
        return reference.experts(
            self._ball(self.x), self.expert_ids, self._ball(self.weights), self._balls, **self.betas
        )

    def output_of(self, expert: int) -> Any:
        """E_j(x) for every token, as a ball."""
        gate_proj, up_proj, down_proj = (part[expert] for part in parts(self._balls))
        return reference.expert(self._ball(self.x), gate_proj, up_proj, down_proj, **self.betas)

    def expected_gradients(self) -> Gradients:
        """The reference's gradients, as balls that hold both ways to the weights' gradients."""
        d_x, d_weights, d_parameters = reference.experts_vjp(
            self._ball(self.x),
            self.expert_ids,
            self._ball(self.weights),
            self._balls,
            self._ball(self.cotangent),
            **self.betas,
            add_slots=slots_added,
        )
        either = hull(d_weights, self._weights_gradient_before_down())
        return Gradients(d_x, either, *parts(d_parameters))

    def _weights_gradient_before_down(self) -> Any:
        """<c W_d, situ_glu(W_g x, W_u x)>: the product of weights with what down_proj is given.

        A kernel that applies the weight before the down projection meets the gradient there.
        """
        x, cotangent = self._ball(self.x), self._ball(self.cotangent)
        row_MK = np.zeros(self.expert_ids.shape, np.int64)
        rows = [self._ball(np.zeros(0))]
        rows_before = 0
        for j in np.unique(self.expert_ids):
            tokens, slots = np.nonzero(self.expert_ids == j)
            row_MK[tokens, slots] = rows_before + np.arange(len(tokens))
            rows_before += len(tokens)
            gate_proj, up_proj, down_proj = (part[j] for part in parts(self._balls))
            hidden_TH = reference.situ_glu(
                projected(x[tokens], gate_proj), projected(x[tokens], up_proj), **self.betas
            )
            d_hidden_TH = stored(np.matmul(cotangent[tokens], down_proj))
            rows.append(stored(np.sum(stored(hidden_TH * d_hidden_TH), axis=1)))
        return np.concatenate(rows)[row_MK]

    def _ball(self, array: Array) -> Any:
        return Ball.exact(array, self.subject.arithmetic)

    @property
    def _balls(self) -> ExpertParameters:
        return ExpertParameters(*map(self._ball, parts(self.parameters)))


def parts(parameters: ExpertParameters) -> tuple[Array, Array, Array]:
    """gate_proj, up_proj and down_proj."""
    return parameters.gate_proj, parameters.up_proj, parameters.down_proj


def all_within(subject: Subject, actual: Gradients, expected: Gradients, what: str) -> None:
    """Require each of the five gradients to lie in its ball. Raises ViolationError."""
    for name, found, ball in zip(Gradients._fields, actual, expected, strict=True):
        within(subject, found, ball, f"d_{name}{what}")


def near(first: Array, *balls: Any) -> Any:
    """What another result may be: ``first``, within the radii of all balls together.

    Sound where the exact results are equal, and where ``first`` is a sum of two results: the
    radius grows by that sum's own rounding in float64.
    """
    radius = sum(ball.radius for ball in balls)
    require(np.isfinite(first) | np.isinf(radius), "a result is not finite")
    return Ball(first, _widened(radius, first), balls[0].arithmetic)


def in_parts(found: list[Gradients], balls: list[Gradients], rows: list[Array]) -> Gradients:
    """What the gradients of a batch may be, given those that its parts, ``rows``, came to.

    ``balls`` are those of the whole batch, then of the parts. The suite adds the parts in float64.
    """
    back = np.argsort(np.concatenate(rows))
    expected = []
    for name, whole in zip(Gradients._fields, balls[0], strict=True):
        own = [getattr(one, name) for one in found]
        radii = [getattr(one, name).radius for one in balls[1:]]
        if name in ("x", "weights"):
            values, radius = np.concatenate(own)[back], np.concatenate(radii)[back]
        else:
            values = sum(own)
            radius = sum(radii)
        expected.append(near(values, Ball(values, radius, whole.arithmetic), whole))
    return Gradients(*expected)


def _widened(radius: Array, values: Array) -> Array:
    """One rounding of the values in float64 more; values are finite unless the radius is not."""
    return np.where(np.isfinite(values), radius + REFERENCE_ROUNDOFF * np.abs(values), np.inf)


def _by_columns(projections: Array, transposed: bool) -> Array:
    """The same matrices, perhaps with columns instead of rows side by side in memory."""
    if not transposed:
        return projections
    return np.ascontiguousarray(projections.swapaxes(1, 2)).swapaxes(1, 2)
