"""How far Quantile Balancing comes, measured: what ``latentmoe-gate study`` computes and writes.

Measured claims, not theorems: every figure is a count or a gap on seeded instances, each against an
optimum that is certified. The theorems and counterexamples are OPT-* in the catalogue.
"""
