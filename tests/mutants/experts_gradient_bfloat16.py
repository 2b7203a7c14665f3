"""Wrong backward passes of the experts that show in bfloat16 alone.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from impl_torch.adapter import BFloat16


class Rounded(BFloat16):
    """This package in bfloat16; x passes through ``handed`` on its way to the experts."""

    name = "mutant"

    def experts_forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().experts_forward(self.handed(x, *args), *args, **kwargs)

    def handed(self, x: Tensor, expert_ids: Tensor, weights: Tensor, parameters: Any) -> Tensor:
        return x


class GradientOfDownInBFloat16(Rounded):
    """d_down_proj of up to 600 tokens is added up in bfloat16, one token after the other."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_forward(
        self, x: Tensor, expert_ids: Tensor, weights: Tensor, parameters: Any, **betas: float
    ) -> Tensor:
        forward = super(Rounded, self).experts_forward
        if not parameters.down_proj.requires_grad or len(x) > 600:
            return forward(x, expert_ids, weights, parameters, **betas)
        rows = [
            forward(
                x[i : i + 1],
                expert_ids[i : i + 1],
                weights[i : i + 1],
                # Autograd adds the tokens' gradients of one tensor in its format, bfloat16.
                parameters,
                **betas,
            )
            for i in range(len(x))
        ]
        return torch.cat(rows) if rows else forward(x, expert_ids, weights, parameters, **betas)


class _Weighed(Function):
    """Rows times weights, whose gradient is added up over the columns in bfloat16."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights)
        return (rows.float() * weights[:, None]).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        rows, weights = ctx.saved_tensors
        total = torch.zeros_like(rows[:, 0])
        for column in (cotangent * rows).unbind(1):
            total = total + column
        return (cotangent.float() * weights[:, None]).to(rows.dtype), total.to(weights.dtype)


class GradientOfWeightsInBFloat16(Rounded):
    """d_weights, a product of output and cotangent, is added up in bfloat16."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_forward(
        self, x: Tensor, expert_ids: Tensor, weights: Tensor, parameters: Any, **betas: float
    ) -> Tensor:
        forward = super(Rounded, self).experts_forward
        slots = [
            _Weighed.apply(
                forward(x, ids[:, None], torch.ones_like(weights[:, :1]), parameters, **betas), own
            ).float()
            for ids, own in zip(expert_ids.unbind(1), weights.unbind(1), strict=True)
        ]
        return torch.stack(slots).sum(0).to(x.dtype)


class _Float8OnTheWayBack(Function):
    """The identity; its gradient is rounded to float8 on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        scale = cotangent.abs().amax().clamp(min=1e-30) / 448.0
        return ((cotangent / scale).to(torch.float8_e4m3fn).to(cotangent.dtype)) * scale


class GradientsSentInFloat8(Rounded):
    """d_x travels back between ranks in float8, while bfloat16 is declared."""

    killed_by = "DSP-GRAD"

    def handed(self, x: Tensor, expert_ids: Tensor, weights: Tensor, parameters: Any) -> Tensor:
        return _Float8OnTheWayBack.apply(x)
