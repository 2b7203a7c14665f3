from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from impl_torch.arrays import nan_memory, to_array, to_tensor, torch_dtype

FORMATS = [
    np.dtype(name) for name in ("float64", "float32", "float16", "int64", "int32", "uint8", "bool")
] + [
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
]


def values(dtype: np.dtype, *shape: int) -> np.ndarray:
    array = (np.arange(np.prod(shape)).reshape(shape) % 13).astype(dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_round_trip_keeps_format_and_bits(dtype: np.dtype) -> None:
    array = values(dtype, 3, 4)
    tensor = to_tensor(array)
    assert str(tensor.dtype) == f"torch.{dtype.name}"
    back = to_array(tensor)
    assert back.dtype == dtype
    assert back.tobytes() == array.tobytes()
    tensor.zero_()
    assert array.astype(np.float64).any()


def test_bfloat16_specials_keep_their_bits() -> None:
    bits = np.array([0x7FC1, 0xFF80, 0x8000, 0x0001, 0x7F7F], dtype=np.uint16)
    array = bits.view(ml_dtypes.bfloat16)
    assert (to_array(to_tensor(array)).view(np.uint16) == bits).all()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    "index",
    [
        np.s_[:, ::2],
        np.s_[1:, 1::3],
        np.s_[::2],
        np.s_[:, :1],
        np.s_[:, 2],
        np.s_[::-1],
        np.s_[:, None, 1:3],
        np.s_[:0],
        np.s_[2, 3],
    ],
    ids=str,
)
def test_strides_are_kept_where_tensors_have_them(dtype: np.dtype, index: object) -> None:
    array = np.asarray(values(dtype, 5, 8)[index])  # type: ignore[index]
    transposed = array.T
    for view in (array, transposed):
        tensor = to_tensor(view)
        assert to_array(tensor).tobytes() == np.ascontiguousarray(view).tobytes()
        wanted = tuple(stride // view.itemsize for stride in view.strides)
        if view.size and min(wanted, default=0) >= 0:
            real = [axis for axis, size in enumerate(view.shape) if size > 1]
            assert [tensor.stride(axis) for axis in real] == [wanted[axis] for axis in real]


def test_gaps_hold_no_plausible_value() -> None:
    strided = to_tensor(values(np.dtype("float32"), 4, 6)[:, ::2])
    whole = torch.as_strided(strided, (23,), (1,))
    assert torch.isnan(whole[1::2]).all()
    ids = to_tensor(values(np.dtype("int64"), 4, 6)[:, ::2])
    assert (torch.as_strided(ids, (23,), (1,))[1::2] == 2**63 - 1).all()


def test_overlapping_and_misaligned_views_become_contiguous() -> None:
    array = np.arange(5.0)
    for view in (
        np.broadcast_to(array, (3, 5)),
        np.lib.stride_tricks.sliding_window_view(array, 3),
        np.zeros(4, dtype=[("a", "f4"), ("b", "f8")])["b"],
    ):
        tensor = to_tensor(view)
        assert tensor.is_contiguous()
        np.testing.assert_array_equal(tensor.numpy(), view)


def test_formats_by_name_and_casts() -> None:
    assert torch_dtype("bfloat16") == torch.bfloat16
    with pytest.raises(ValueError, match="torch has no number format 'bfloat17'"):
        torch_dtype("bfloat17")
    with pytest.raises(ValueError, match="torch has no number format 'nn'"):
        torch_dtype("nn")
    cast = to_tensor(values(np.dtype("float32"), 4, 6)[:, ::2], torch.float64)
    assert cast.dtype == torch.float64
    assert cast.stride() == (6, 2)


def test_memory_that_nobody_wrote_is_nan() -> None:
    with nan_memory():
        assert torch.empty(3, 5, dtype=torch.bfloat16).isnan().all()
        assert torch.zeros(4).new_empty(2).isnan().all()
        assert not torch.zeros(7).isnan().any()
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_mode_of_torch_is_put_back_after_an_error() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="no values"), nan_memory():
            raise RuntimeError("no values")
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
