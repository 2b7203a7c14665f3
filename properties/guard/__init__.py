"""Judging an implementation that crashes, hangs, meddles or shadows, and going on with the rest.

``trace`` notes the running call where another process reads it; ``watchdog`` is that process, and
ends what is overdue; ``aftermath`` tells what a dead process was doing; ``watching`` ties a session
to them, ``supervision`` starts another one where it died. ``protection`` turns what a call raises
into a verdict, ``surroundings`` notices what one leaves changed, ``provenance`` the use of the
reference, ``shadows`` files in the way of the suite.
"""
