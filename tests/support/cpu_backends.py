"""The backends that are tested on models of all families; numba-cuda, which needs a GPU or a simulator, has its own tests."""


def cpu_backends(registry):
    return sorted(set(registry.backends) - {"numba-cuda"})
