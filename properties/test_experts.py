"""Properties of the topic experts."""
