"""The shell of both compiled backends: how batches are cut, what slots keep, and models around the passes of a tape."""
