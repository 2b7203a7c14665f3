"""What the properties are tried on: one module of Hypothesis strategies per topic.

Strategies draw *structure* (shapes, scale, pattern of ties, a NumPy seed) and, as a second class,
small arrays element by element, so that a failure shrinks to numbers a person can follow. They know
nothing of an implementation: values are float64 and are rounded to its formats by the property.
"""
