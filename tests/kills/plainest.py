"""The plainest mistakes, which the quick lane must catch, by the file that they stand in."""

_FILES = {
    "activation": "Swiglu CapOnGateOnly CapOnUpOnly HardClamp BetasSwapped CapAfterSigmoid "
    "GateAndUpSwapped StridesIgnored ComputedInBFloat16 ZeroOutput InputCopied WritesIntoGate",
    "activation_gradient": "SoftcapSlopeOmittedOnUp GradientsExchanged SigmoidTermMissing",
    "routing": "SelectionWithoutBias BiasSubtracted CandidatesRunOut ExpertsFrom256NeverChosen "
    "ZeroIds RandomIds RowsAfterTheSixteenth",
    "balancing": "DirectionFlipped CutoffIsKth OverExperts Accumulated NotCentred PaddingCounted",
    "balancing_counts": "ResetByEach PaddingCounted",
    "histogram": "CountedTwice NeverUpdated UpdatedInsideForward HistogramFlipped",
    "experts": "InversePermutationForgotten LastExpertNeverCounted IdsShifted "
    "WeightsOfTheWrongSlot LastSlotDropped UniformWeights GateAndUpSwapped ZeroOutput",
    "norm": "NormMissing EpsOutsideTheRoot EpsOnTheSum MeanSubtracted WeightPlusOne",
    "layer": "WeightsFromBiasedScores BiasIgnored RouterFedLatent ScaleAfterNorm LastSlotDropped "
    "WeightsNotNormalised",
    "layer_norm": "NormMissing",
    "layer_shared": "SharedMissing SharedTwice",
}

PLAINEST = [f"{file}-{name}" for file, names in _FILES.items() for name in names.split()]
