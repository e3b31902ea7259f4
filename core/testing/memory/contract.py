"""The contracts of every memory manager; `augury.plugin.MemoryManager` says the same at its methods."""

from __future__ import annotations

from augury.testing.contract import Contract

OPEN = Contract(
    "`open` gives a free slot to a request, the one that is named if one is, or None while all are taken.",
    "augury.plugin.MemoryManager.open",
)
REUSE = Contract(
    "Reused are tokens that begin the prompt, never all of it, and none of or by a request that forbids it.",
    "augury.plugin.MemoryManager.open",
)
CAPACITY = Contract("What does not fit is a CapacityError and changes nothing.", "augury.plugin.MemoryManager.prepare")
ROOM = Contract(
    "`room` is what still fits after what a slot keeps, and `prepare` of as much works.", "augury.plugin.MemoryManager.room"
)
CHUNK = Contract("`chunk` takes some of a prompt's next tokens, 1 at least.", "augury.plugin.MemoryManager.chunk")
RESERVATION = Contract("A pass starts at `mark`, with what is kept after that in `replay`.", "augury.plugin.Reservation")
STATE = Contract(
    "Whatever was accepted, undone, moved or reused, a slot holds the text of its request and nothing else.",
    "augury.plugin.MemoryManager.commit",
)
TRUNCATE = Contract("`truncate` keeps at most what it is asked for, and says how much.", "augury.plugin.MemoryManager.truncate")
SUITABLE = Contract(
    "A memory manager suits some kind of state, and says of the others why not.", "augury.plugin.MemoryManager.suitable"
)
BYTES = Contract("`n_bytes` covers what the slots keep.", "augury.plugin.MemoryManager.n_bytes")
ERROR = Contract("A memory manager raises CapacityErrors alone.", "augury.plugin.MemoryManager")
