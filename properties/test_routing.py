"""Properties of the topic routing."""
