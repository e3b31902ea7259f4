"""The backends that are tested on models of all families.

numba-cuda, which needs a GPU or a simulator, and remote and ray, which need other machines that compute by another one, have
their own tests.
"""


def cpu_backends(registry):
    return sorted(set(registry.backends) - {"numba-cuda", "remote", "ray"})
