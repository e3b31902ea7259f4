"""The contracts of every backend; `augury.backend.Model` and `augury.backend.Batch` say the same at length."""

from __future__ import annotations

from augury.testing.contract import Contract

LOGITS = Contract("Logits are the reference backend's, up to the backend's `tolerance`.", "augury.backend.Backend.tolerance")
ROWS = Contract(
    "A token's logits do not depend, to the bit, on what shares its pass nor on how earlier tokens were split into passes.",
    "augury.backend.Model.forward",
)
THREADS = Contract("Nor do they depend on the number of threads.", "docs/architecture.md, “Why the output cannot change”")
UNDO = Contract("What is stored again is forgotten.", "augury.backend.Batch")
TREES = Contract("A tree's logits are, to the bit, those that each path would have as a chain.", "augury.backend.Batch")
MOVES = Contract("States that are moved are those that they were.", "augury.backend.Batch")
CHAINS = Contract(
    "The passes of a chain are, to the bit, those over what was chosen, one by one, and store the same. So are the sums "
    "of their rows where the model has `chain_rows`.",
    "augury.backend.Model.forward_chain",
)
LAYERS = Contract("A pass through all layers is a pass, one through fewer is the reference's.", "augury.backend.Batch")
SAVED = Contract(
    "A restored slot goes on, to the bit, as the saved one; what is damaged, or was loaded otherwise, is a ModelFileError.",
    "augury.plugin.SlotStates",
)
FEATURES = Contract(
    "Features are the reference's, a token's depend on its text alone, and a pass from hidden states on is the whole pass.",
    "augury.backend.Model.features",
)
MTP = Contract(
    "A layer that predicts further tokens gives what the reference's gives, and its drafts leave no trace.",
    "augury.drafter.Target.forward_part",
)
HANDLE = Contract("A forward returns a Pass, whose methods agree with its rows.", "augury.backend.Pass")
VOCABULARY = Contract(
    "Logits of a vocabulary are, to the bit, those among all; others are -inf or right.", "augury.backend.Batch"
)
OUTSIDE = Contract(
    "Positions and slots that do not exist are CapacityErrors, tokens OptionErrors, and change nothing.",
    "augury.backend.Model.forward",
)
SPEC = Contract("What a plan's slots take is known before it is loaded.", "augury.backend.Backend.state_spec")
UNSUPPORTED = Contract("What a backend cannot do is an UnsupportedError.", "augury.backend.Backend.load")
CLOSED = Contract("`close` may be called twice; a pass afterwards is an AuguryError.", "augury.backend.Model.close")
TABLE = Contract("The memory table sums to what is allocated.", "augury.backend.Model.memory_table")
