"""Properties of the Stable LatentMoE layer, for any implementation (see ``properties.protocol``).

``latentmoe-gate run package.module:Name`` judges an implementation; ``latentmoe-gate list`` and
``latentmoe-gate explain ID`` print the catalogue. From Python: ``properties.loading.load`` and
``properties.execution.judge_all``.
"""
