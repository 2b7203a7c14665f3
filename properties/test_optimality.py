"""Properties of the topic optimality."""
