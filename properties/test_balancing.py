"""Properties of the topic balancing."""
