"""The balanced assignment problem of Appendix C: solved, certified, descended by named rules."""

from lp_oracle.at_scale import CertifiedOptimum, certified_optimum
from lp_oracle.behaviours import (
    FRACTION_OFF_MINIMISER,
    FRACTION_RISES,
    LOCAL_MEAN,
    PRICE_WAR,
    UNEVEN_LOADS,
)
from lp_oracle.certificate import (
    Certificate,
    Residual,
    RoutingVerdict,
    certify,
    certify_routing,
    certify_solution,
)
from lp_oracle.descent import (
    EXPERT_RULES,
    TOKEN_RULES,
    DescentTrace,
    ExpertRule,
    Outcome,
    TokenRule,
    coordinate_descent,
    expert_step,
    token_step,
)
from lp_oracle.dual import (
    Interval,
    dual_objective,
    dual_radius,
    expert_interval,
    expert_subgradient,
    token_interval,
    token_subgradient,
)
from lp_oracle.instances import INSTANCES, PinnedInstance
from lp_oracle.linear_program import SOLVER_TOLERANCE, LinearProgramSolution, solve_linprog
from lp_oracle.perturbation import PerturbedDescent, perturbed_descent
from lp_oracle.problem import AssignmentProblem, exact

__all__ = [
    "EXPERT_RULES",
    "FRACTION_OFF_MINIMISER",
    "FRACTION_RISES",
    "INSTANCES",
    "LOCAL_MEAN",
    "PRICE_WAR",
    "SOLVER_TOLERANCE",
    "TOKEN_RULES",
    "UNEVEN_LOADS",
    "AssignmentProblem",
    "Certificate",
    "CertifiedOptimum",
    "DescentTrace",
    "ExpertRule",
    "Interval",
    "LinearProgramSolution",
    "Outcome",
    "PerturbedDescent",
    "PinnedInstance",
    "Residual",
    "RoutingVerdict",
    "TokenRule",
    "certified_optimum",
    "certify",
    "certify_routing",
    "certify_solution",
    "coordinate_descent",
    "dual_objective",
    "dual_radius",
    "exact",
    "expert_interval",
    "expert_step",
    "expert_subgradient",
    "perturbed_descent",
    "solve_linprog",
    "token_interval",
    "token_step",
    "token_subgradient",
]
