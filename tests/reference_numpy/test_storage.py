"""The marks of stored values change nothing in float64."""

from __future__ import annotations

import numpy as np

from reference_numpy.storage import projected, stored


def test_stored_is_the_identity() -> None:
    x = np.array([-0.0, 5e-324, -1.5, np.inf, np.nan])
    np.testing.assert_array_equal(stored(x).view(np.int64), x.view(np.int64))


def test_projected_multiplies_by_the_transpose() -> None:
    x_ML = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])
    weight_OL = np.array([[1.0, 0.0, 2.0], [-1.0, 4.0, 0.0]])
    np.testing.assert_array_equal(projected(x_ML, weight_OL), [[7.0, 7.0], [1.0, -4.0]])


def test_a_stack_of_weights_gives_a_stack_of_maps() -> None:
    rng = np.random.default_rng(0)
    x_ML, weight_NOL = rng.normal(size=(5, 3)), rng.normal(size=(4, 2, 3))
    stack_NMO = projected(x_ML, weight_NOL)
    assert stack_NMO.shape == (4, 5, 2)
    np.testing.assert_allclose(stack_NMO[2], x_ML @ weight_NOL[2].T, rtol=1e-14)
