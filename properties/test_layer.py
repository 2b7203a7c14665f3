"""Properties of the topic layer."""
