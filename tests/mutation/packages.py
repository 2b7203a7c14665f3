"""What is mutated, and the tests that are asked about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A package, the folders of tests that judge its mutants, and tests of these left out."""

    name: str
    source: str
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def selection(self) -> list[str]:
        """What pytest is called with; a file that is left out is not even imported."""
        left_out = (
            f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in self.left_out
        )
        return [*self.tests, *left_out]


_ORACLES = "tests/lp_oracle/test_independent_oracles.py"

# Left out are the slowest: a mutant that survives runs every test that reaches its function.
PACKAGES = {
    package.name: package
    for package in (
        Package("reference_numpy", "reference_numpy", ("tests/reference_numpy",)),
        Package(
            "lp_oracle",
            "lp_oracle",
            ("tests/lp_oracle",),
            (
                "tests/lp_oracle/test_smallest_instances.py",
                f"{_ORACLES}::test_optimum_at_scale",
                f"{_ORACLES}::test_dual_simplex_and_interior_point",
                f"{_ORACLES}::test_min_cost_flow_of_larger_batches",
            ),
        ),
        Package(
            "rounding",
            "properties/rounding",
            ("tests/rounding",),
            (
                "tests/rounding/test_composites.py",
                "tests/rounding/test_report.py",
                "tests/rounding/test_soundness.py",
            ),
        ),
    )
}
