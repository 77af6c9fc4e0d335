"""Hostile files: generators, mutators and the properties that every input has to keep.

`python -m fuzz` (in the folder `tests`) runs them; `corpus/` has an input for each kind of thing that was found.
"""
