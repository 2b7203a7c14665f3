"""RMSNorm of the combined latent: the norm inside Eq. 11.

Legend: L the normalised width.
"""

from __future__ import annotations

import reference_numpy as reference
from properties.checks import within
from properties.judgement.norm import within_range
from properties.registry import specification
from properties.strategies import norm
from properties.strategies.arrays import laid_out
from properties.strategies.norm import NormInputs
from properties.subject import Subject


@specification(
    "NRM-VALUE", source="Eq. 11", needs=("rms_norm",), examples=130, inputs=norm.inputs()
)
def test_nrm_value(subject: Subject, inputs: NormInputs) -> None:
    """RMSNorm(x) = x / sqrt(mean(x^2) + eps) * weight, over the last axis.

    The mean square is taken before the weight acts, eps is added to the mean and not to the sum,
    and inside the root.

    Hypotheses: finite x and weight, eps > 0, or eps = 0 where no row is 0, any leading shape, L
    from 1 to 3584, up to 300 rows, any strides of both, amplitudes 1e-7 to 1e7, row by row, as far
    as the declared formats hold them and what the formula makes of them: where compute is float16,
    x^2 overflows from 256 on, and nothing is owed there; of L terms a running sum of p bits tells
    nothing from 2^(p-1) on. The value holds within the radius that the declared formats give the
    formula.

    Legal freedoms: the order of the sum and of the products, a reciprocal root instead of a
    division, and one rounding to storage before the weight is applied (published models do it).

    If it fails: at unit amplitude eps outside the root, eps on the sum and a missing eps all look
    right; rows of amplitude sqrt(eps), about 3e-3, then come out scaled by 40 % and more, and the
    model drifts from the one that was trained. At eps = 0 alone, it is taken for "not given"; past
    some width or number of rows, a block of a fixed size stands for all. A mean over another axis,
    or over the whole batch, makes a token depend on its neighbours.
    """
    inputs = within_range(subject, inputs)
    x = laid_out(subject.round_to_storage(inputs.x), inputs.layout)
    weight = laid_out(subject.round_to_storage(inputs.weight), inputs.layout)
    actual = subject.rms_norm(x, weight, eps=inputs.eps)
    expected = reference.rms_norm(subject.ball(x), subject.ball(weight), eps=inputs.eps)
    within(subject, actual, expected, "rms_norm")
