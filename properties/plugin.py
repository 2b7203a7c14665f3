"""The pytest plugin: ``--implementation package.module:Name`` and nothing until it is given.

Without the option the plugin adds options to pytest's help and otherwise leaves a session alone.
With it, every property test judges the named implementation, reports its verdict through pytest's
own reports (also across pytest-xdist workers), and a summary by topic precedes the failures.

What an implementation does to its process is survived where processes are several: pytest-xdist
replaces a worker that died, and ``properties.guard.supervision`` a process that worked alone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from properties.options import add_options, place, selected

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from properties.execution import Outcome
    from properties.guard.watching import Watching
    from properties.registry import Property
    from properties.subject import Subject

# Of what a property printed, so many characters are kept, from either end.
OUTPUT = 4000

# The most and the least ranks of a lane: starting a world takes seconds.
RANKS = {"quick": (2, 2), "gate": (4, 4), "nightly": (4, 2)}

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; importing the suite waits until an implementation is named."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Load the implementation and switch the rest of the plugin on, if one is named."""
    if not config.getoption("--implementation"):
        return
    reports_for_workers = _one_thread_per_worker(config)
    folder = str(config.invocation_params.dir)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    from properties.errors import AdapterError
    from properties.guard import interruption
    from properties.guard.shadows import require_own
    from properties.guard.watching import Watching

    interruption.install()
    watching = Watching(config)
    try:
        require_own(Path(folder))
    except AdapterError as error:
        raise pytest.UsageError(f"--implementation: {error}") from error
    if reports_for_workers:
        config.pluginmanager.register(_Beside(config, watching), "latentmoe-gate-start")
        return
    try:
        gate = _begin(config, watching)
    except BaseException:
        watching.tell(None)
        raise
    watching.tell(gate.about)


def _begin(config: pytest.Config, watching: Watching, about: dict[str, Any] | None = None) -> Gate:
    """Load the implementation, unless all that is needed is known ``about`` it."""
    from properties.errors import AdapterError

    subject = None
    try:
        if about is None:
            subject = _loaded(config, watching)
        chosen = {entry.id for entry in selected(config)}
    except AdapterError as error:
        raise pytest.UsageError(f"--implementation: {error}") from error
    except KeyError as error:
        raise pytest.UsageError(f"--gate-only: {error.args[0]}") from error
    gate = Gate(config, subject, about, chosen, watching)
    config.pluginmanager.register(gate, "latentmoe-gate-run")
    return gate


def _loaded(config: pytest.Config, watching: Watching) -> Subject:
    from properties.loading import load
    from properties.ranks import modules_for

    reference = config.getoption("--implementation")
    with watching.trace.loading(reference):
        subject = load(reference)
    subject.trace = watching.trace
    subject.rank_modules = modules_for(subject.offered)
    asked: int | None = config.getoption("--gate-ranks")
    subject.limit_ranks(*((asked,) if asked else RANKS[config.getoption("--gate-lane")]))
    return subject


class _Beside:
    """Of a process that reports for workers: they tell it what it has to say of theirs.

    Only where none does, for whatever reason, it loads the implementation itself, and finds out.
    """

    def __init__(self, config: pytest.Config, watching: Watching) -> None:
        self._config = config
        self._watching = watching

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None]:
        """Begin once the workers have been started, and add to the header what is known then."""
        yield
        gate = _begin(self._config, self._watching, self._watching.told())
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.showheader:
            reporter.ensure_newline()
            for line in gate.pytest_report_header():
                reporter.write_line(line)


def _one_thread_per_worker(config: pytest.Config) -> bool:
    """Workers share the machine; set before they start, since BLAS reads it when it is loaded.

    Returns whether this process has workers.
    """
    import os

    several = bool(config.getoption("numprocesses", None))
    if several:
        for variable in THREAD_VARIABLES:
            os.environ.setdefault(variable, "1")
    return several and not hasattr(config, "workerinput")


@pytest.fixture
def latentmoe_gate(request: pytest.FixtureRequest) -> Judge:
    """Judges the property that requests it, on the implementation that the session names."""
    gate = request.config.pluginmanager.get_plugin("latentmoe-gate-run")
    if gate is None:
        pytest.fail(
            "no implementation is named: add --implementation package.module:Name", pytrace=False
        )
    return Judge(gate, request.node)


class Judge:
    """Judges one property for one pytest item and turns the verdict into a pytest outcome."""

    def __init__(self, gate: Gate, item: pytest.Item) -> None:
        self._gate = gate
        self._item = item

    def judge(self, entry: Property) -> None:
        """Run the property; skip if it is not offered, fail unless it passed."""
        from properties.execution import judge
        from properties.lanes import lane_for
        from properties.report import failure_text

        gate = self._gate
        lane = lane_for(gate.lane, theory=entry.theory)
        outcome = gate.watching.known.get(entry.id) or judge(
            entry, gate.subject, lane, gate.seed, save=gate.save
        )
        self._item.stash[OUTCOME] = outcome
        self._item.user_properties += [("property", outcome.id), ("verdict", outcome.verdict)]
        if outcome.worst_ratio is not None:
            self._item.user_properties.append(("worst_ratio", f"{outcome.worst_ratio:.6g}"))
        if outcome.verdict == "not offered":
            pytest.skip(f"{outcome.id}: not offered, {outcome.message}")
        if outcome.verdict != "passed":
            pytest.fail(failure_text(outcome, gate.about), pytrace=False)


OUTCOME = pytest.StashKey["Outcome"]()


class Gate:
    """The hooks of a session that judges an implementation."""

    def __init__(
        self,
        config: pytest.Config,
        subject: Subject | None,
        about: dict[str, Any] | None,
        chosen: set[str],
        watching: Watching,
    ) -> None:
        """Of a subject, or of what is known ``about`` one that other processes judge."""
        from properties.report import describe

        self._subject = subject
        self.watching = watching
        self.lane: str = config.getoption("--gate-lane")
        self.seed: int | None = config.getoption("--gate-seed")
        self.save = None if config.option.gate_save is None else Path(config.option.gate_save)
        ranks, seconds = config.getoption("--gate-ranks"), watching.call_seconds
        self.about = about or describe(self.subject, self.lane, self.seed, ranks, seconds)
        self.outcomes: list[Outcome] = []
        self._chosen = chosen
        self._narrowed = bool(config.getoption("--gate-only") or config.getoption("--gate-topic"))
        self._json: Path | None = config.getoption("--gate-json")
        self._is_worker = hasattr(config, "workerinput")
        self._expected: set[str] = set()

    @property
    def subject(self) -> Subject:
        """The implementation, in a process that judges it."""
        assert self._subject is not None
        return self._subject

    def pytest_report_header(self) -> list[str]:
        """What is being judged, and how."""
        from properties.report import header_lines

        return header_lines(self.about)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out properties that were not selected; other tests of the session stay."""
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            entry = getattr(getattr(item, "function", None), "specification", None)
            (kept if entry is None or entry.id in self._chosen else left_out).append(item)
        if left_out:
            config.hook.pytest_deselected(items=left_out)
        items[:] = sorted(kept, key=place)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the verdict along with pytest's report, which crosses worker processes."""
        report = yield
        report.sections = [(title, _clipped(text)) for title, text in report.sections]
        item._report_sections[:] = [
            (when, key, _clipped(text)) for when, key, text in item._report_sections
        ]
        outcome = item.stash.get(OUTCOME, None)
        if report.when == "call" and outcome is not None:
            report.__dict__["latentmoe_gate"] = outcome.as_dict()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect verdicts where the session is reported, i.e. not in a worker."""
        from properties.execution import Outcome

        known = getattr(report, "latentmoe_gate", None)
        if known is not None:
            self._add(Outcome(**known))
        elif report.failed and report.when not in ("setup", "call", "teardown"):
            self._add_crash(report)

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if not self._is_worker:
            self.watching.note(outcome)

    def _add_crash(self, report: pytest.TestReport) -> None:
        """pytest-xdist reports a dead worker as a failure without a phase of its own."""
        from properties.guard.aftermath import exit_status, how_ended, outcome_of_death
        from properties.report import failure_text

        for property_id in _ids([report.nodeid]):
            how = how_ended(exit_status(report))
            crash = outcome_of_death(self.watching.folder, property_id, how)
            self._add(crash)
            report.longrepr = failure_text(crash, self.about)
            report.__dict__["latentmoe_gate"] = crash.as_dict()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember what was to be judged."""
        self._expected |= _ids(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """The same, where workers collect."""
        self._expected |= _ids(ids)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> Generator[None]:
        """Topics and figures before pytest's list of failures, the verdict after it."""
        from properties import report

        self._sort()
        if self.outcomes:
            terminalreporter.section("verdicts by topic")
            lines = report.topic_lines(self.outcomes)
            if not self._narrowed:
                lines += report.left_out_lines(self._chosen, self.about["offered"])
            for line in [*lines, *report.unjudged_lines(self.about["offered"])]:
                terminalreporter.write_line(line)
            figures = report.figure_lines(self.outcomes, theory=self._narrowed)
            if figures:
                terminalreporter.section("figures")
            for line in [*figures, *report.note_lines(self.outcomes)]:
                terminalreporter.write_line(line)
        with self._each_cause_once(terminalreporter):
            yield
        if self.outcomes:
            for told in report.failed_lines(self.outcomes):
                terminalreporter.write_line(told)
            line = report.verdict_line(self.outcomes, time.perf_counter() - self.watching.started)
            good = line.startswith("PASSED")
            terminalreporter.write_line(line, bold=True, green=good, red=not good)

    @contextlib.contextmanager
    def _each_cause_once(self, reporter: TerminalReporter) -> Generator[None]:
        """Print the first failure of each cause, and with it the ids of the others."""
        from properties.causes import groups
        from properties.execution import Outcome
        from properties.report import failure_text

        first = {ids[0]: ids[1:] for ids in groups(self.outcomes).values()}
        others = {name for ids in first.values() for name in ids}
        reports = reporter.stats.get("failed", [])
        kept = []
        for report in reports:
            known = getattr(report, "latentmoe_gate", {"id": ""})
            if known["id"] in first:
                report.longrepr = failure_text(Outcome(**known), self.about, first[known["id"]])
            if known["id"] not in others:
                kept.append(report)
        if reports:
            reporter.stats["failed"] = kept
        try:
            yield
        finally:
            if reports:
                reporter.stats["failed"] = reports  # which are counted in the last line

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the JSON; a session in which nothing was offered is not a pass."""
        from properties.report import EXIT_PASSED, exit_code, write_json

        _close_launches()
        if self._is_worker or not self._expected:
            return
        self._add_missing()
        self._sort()
        code = exit_code(self.outcomes)
        if code != EXIT_PASSED and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._json is not None:
            write_json(self._json, self.about, self.outcomes, code)

    def _add_missing(self) -> None:
        """What was to be judged and has no verdict is not passed over in silence."""
        from properties.execution import Outcome
        from properties.registry import find

        judged = {outcome.id for outcome in self.outcomes}
        for entry in map(find, sorted(self._expected - judged)):
            missing = Outcome(entry.id, entry.topic, entry.kind, "unknown", entry.headline)
            missing.message = "not judged: the run ended before"
            self.outcomes.append(missing)

    def _sort(self) -> None:
        from properties.registry import catalogue

        order = list(catalogue())
        self.outcomes.sort(key=lambda outcome: order.index(outcome.id))


def _ids(nodeids: Iterable[str]) -> set[str]:
    """The properties that these tests judge."""
    from properties.registry import catalogue

    names = {nodeid.rpartition("::")[2] for nodeid in nodeids if "properties" in nodeid}
    return {entry.id for entry in catalogue().values() if entry.function.__name__ in names}


def _clipped(text: str) -> str:
    if len(text) <= 2 * OUTPUT:
        return text
    left_out = len(text) - 2 * OUTPUT
    return f"{text[:OUTPUT]}\n… {left_out} characters are left out …\n{text[-OUTPUT:]}"


def _close_launches() -> None:
    """End the ranks that properties have started in this process."""
    from properties.ranks import close_launches

    close_launches()
