"""The common parts of lookup drafters."""

import numpy as np

MAX_CORPUS_TOKENS = 1 << 24
"""The most tokens of a corpus; a larger file is none."""

_SIZES, _ADDRESSES = ("n", "n_used", "n_seen", "first_branch"), ("tokens", "sorted", "recent", "ending")
SUFFIX_STATE = np.dtype(
    [(name, np.int64) for name in (*_SIZES, *_ADDRESSES, *(f"n_{name}" for name in _ADDRESSES))]
    + [(name, np.float64) for name in ("factor", "offset", "min_prob")]
)
"""The state of compiled drafts of `suffix`: tokens of texts, recent contexts, tokens of the text that are learnt, the first
bucket of branches; arrays' addresses and lengths; options."""

RECYCLE_ARRAYS = "rows", "is_of_target", "pairs", "pair_rows", "kinds", "buckets", "shape", "shape_without"
RECYCLE_STATE = np.dtype([(name, np.int64) for each in RECYCLE_ARRAYS for name in (each, f"n_{each}", f"m_{each}")])
"""That of `recycle`: addresses of arrays, and their shapes."""
