"""Properties of the topic activation."""
