"""How drafters are made to draft on the tiny models, where their options were chosen for real ones."""

import itertools

from oracles.drafts import HEADS, copying_head, predictable
from oracles.models import tiny_model


def head_specs(target):
    """Drafters with a head of a target, by their names; none where its hidden states are not told."""
    heads = {kind: copying_head(target, kind) for kind in HEADS}
    return {kind: f"{kind}:model={head}" for kind, head in heads.items() if head is not None}


def target_for(drafter, name="llama-dense"):
    """The model of a name that a drafter drafts for: with a head one that the head is right about in half of the cases."""
    return predictable(name) if drafter in HEADS else tiny_model(name)


def any_two(*values):
    """Half of all combinations of values, among which there are any two values."""
    numbered = itertools.product(*map(enumerate, values))
    return [tuple(value for _, value in each) for each in numbered if sum(i for i, _ in each) % 2 == 0]


WAYS = {  # of choosing tokens
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.7, "seed": 7, "top_k": 8},
    "shaped": {
        "temperature": 0.9,
        "seed": 5,
        "dry_multiplier": 0.8,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.4,
        "dynatemp_range": 0.3,
    },
    "mirostat": {"temperature": 0.7, "seed": 9, "mirostat": 2, "mirostat_tau": 3.0},
}
SPECS = {  # some in several ways; a drafter without an entry runs as it is
    "ngram-simple": "ngram-simple:n=1,m=5",
    "ngram-map-k": "ngram-map-k:n=1,m=5",
    "ngram-map-k4v": "ngram-map-k4v:n=1,m=3",
    "ngram-mod": "ngram-mod:n_match=1,n_min=1,n_max=6",
    "ngram-cache": "ngram-cache:m=5",
    "suffix": "suffix:max_depth=4,factor=2.0",
    "recycle": "recycle:depth=3",
    "self-spec": "self-spec:draft_min=1,draft_max=5",
    "self-spec layers": "self-spec:mode=layers,layers=1,p_min=0.05",
    # the same model in a coarser weight type: often right, often not
    "draft-model": f"draft-model:model={tiny_model('llama-dense-q4_0')}",
    **head_specs("llama-dense"),
    "draft-model in trees": f"draft-model:model={tiny_model('llama-dense-q4_0')},tree=2x3",
}
