"""The optimum at the size of a training batch: rounds, augmentation, strict margins, a proof."""

from lp_oracle.at_scale.optimum import CertifiedOptimum, Proof, certified_optimum

__all__ = ["CertifiedOptimum", "Proof", "certified_optimum"]
