"""Judging an implementation that crashes, hangs, meddles or shadows, and going on with the rest.

``trace`` notes the running call where another process reads it; ``watchdog`` is that process, and
ends what is overdue; ``aftermath`` tells what a dead process was doing; ``watching`` ties a session
to them, ``supervision`` starts another one where it died. ``surroundings`` notices what a call
leaves changed, ``provenance`` the use of the reference, ``shadows`` files in the way of the suite.
"""
