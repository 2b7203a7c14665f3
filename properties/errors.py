"""The ways a check can end other than by passing."""

from __future__ import annotations


class AdapterError(Exception):
    """The adapter, or the call that named it, is wrong; no statement was judged.

    Raised for a module or name that cannot be found, a constructor that raises, a signature that
    does not take the protocol's arguments, or a result of the wrong type, shape or dtype.
    """


class RanksError(AdapterError):
    """Ranks could not be started, or one raised, died, or did not come back.

    The message names the rank and the call. Asking again would take as long again.
    """


class ViolationError(Exception):
    """An implementation contradicts a property on the inputs of the present case."""


class UnknownError(Exception):
    """The present case could not be decided: no certificate, or a radius that is infinite."""


class NotOfferedError(Exception):
    """A method answered, but left out the optional part that the property judges."""


class SuiteError(Exception):
    """The suite itself misbehaved, e.g. generated an input that the storage format cannot hold."""
