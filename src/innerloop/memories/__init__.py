"""One published memory per file: a docstring with Equation, Axes, Reference and Departs, and a function."""
