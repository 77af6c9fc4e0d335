"""Changes of the code that the tests must notice. Not a test itself: see `__main__`."""
