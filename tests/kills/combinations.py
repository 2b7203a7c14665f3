"""Mistakes that show under one condition only: for each condition, mutants by topic."""

from __future__ import annotations

TOPICS = ("activation", "norm", "routing", "balancing", "experts", "layer")

# Balancers alone have a state to load, the activation and the norm have no experts and no slots.
COMBINATIONS: dict[str, str] = {
    "more than 256 experts": "routing-ExpertsFrom256NeverChosen "
    "conditions_balancing-ExpertsFrom256KeepTheirBias conditions_balancing-CountsOf256Experts "
    "experts-IdsInBytes conditions-GradientsOf256Experts layer-ExpertsPastAByte "
    "conditions-LayerGradientBeyond256Experts",
    "more tokens than a chunk": "activation_sneaks-RowsAfterTheBlock "
    "norm_sneaks-RowsAfterTheBlock routing-RowsAfterTheSixteenth "
    "routing_sneaks-GradientsOfTheFirstTokens conditions_balancing-ChunkOf128Tokens "
    "balancing_sneaks-CutoffsOfTheFirstBlock experts_calls-RowsBeyond256Dropped "
    "experts_gradient-ChunkOverwritesGradients conditions-LayerChunkOf64 "
    "layer_sneaks-LastTokensWithoutGradient",
    "a number of tokens that 8 does not divide": "activation-VectorTailForgotten "
    "conditions-GradientTailForgotten conditions-RowsAfterTheLastTileOfEight "
    "routing_symmetry-LastTileForgotten conditions_balancing-TailOfTheTileUncounted "
    "conditions_balancing-TailOfTheTileInTheHistogram "
    "experts_gradient-TailOfTheTileWithoutGradient conditions-LayerTailOfTheTile",
    "k of at least 9": "conditions-NinthSlotWeighsNothing conditions-NinthSlotLearnsNothing "
    "conditions_balancing-CutoffOfEightSlots conditions_balancing-NineSlotsCountAsEight "
    "experts_calls-SlotsBeyondEightDropped conditions-GradientOfTheNinthSlotDropped "
    "layer_numbers-EightSlots conditions-LayerGradientOfNinthSlot",
    "inputs that are not contiguous": "activation-StridesIgnored "
    "activation_gradient-GradientStridesIgnored norm_sneaks-WeightsStridesIgnored "
    "routing_symmetry-LogitsReadOn routing_sneaks-BiasRowAfterRow "
    "conditions_balancing-LogitsCutByRow conditions_balancing-LogitsCutByRowInTheHistogram "
    "experts_calls-StridesOfXIgnored experts_gradient-CotangentStridesIgnored "
    "layer_calls-StridesOfRouterIgnored layer_calls-StridesOfUpIgnored",
    "amplitudes below 1e-3": "conditions-FaintGatesAreZero conditions-FaintCotangentsAreZero "
    "conditions-FaintRowsAsTheyAre conditions-FaintLogitsAreZero "
    "conditions_balancing-FaintLogitsUpdateNothing conditions_balancing-FaintLogitsUncounted "
    "conditions-FaintTokensSkipped conditions-LayerOfFaintTokens",
    "a second call": "conditions-CapsOfTheFirstCall activation_sneaks-GradientsInOneBuffer "
    "conditions-WeightOfTheFirstCall conditions-BiasOfTheFirstCall "
    "routing_gradient-AddsToTheCallBefore conditions_balancing-BiasOfTheCallBefore "
    "balancing_state-AveragedLater experts_calls-PlanCachedByShape "
    "experts_gradient-GradientsInOneBuffer layer_calls-CapsKeptBySize "
    "layer_calls-GradientsAddedToTheLast",
    "a state that was loaded": "balancing_counts-RangeOfTheLastUpdate "
    "conditions_balancing-UncentredAfterLoading "
    "conditions_balancing-EvaluationCountedAfterLoading "
    "conditions_balancing-OldBiasRoutesAfterLoading",
}
