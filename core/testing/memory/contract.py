"""The contracts of every memory manager; `augury.interfaces.MemoryManager` says the same at its methods."""

from __future__ import annotations

from augury.testing.contract import Contract

OPEN = Contract(
    "`open` gives a free slot to a request, the one that is named if one is, or None while all are taken.",
    "augury.interfaces.MemoryManager.open",
)
REUSE = Contract(
    "Reused are tokens that begin the prompt, never all of it, and none where the request forbids it.",
    "augury.interfaces.MemoryManager.open",
)
CAPACITY = Contract("What does not fit is a CapacityError and changes nothing.", "augury.interfaces.MemoryManager.prepare")
ROOM = Contract(
    "`room` is what still fits after what a slot keeps, and `prepare` of as much works.", "augury.interfaces.MemoryManager.room"
)
CHUNK = Contract("`chunk` takes some of a prompt's next tokens, 1 at least.", "augury.interfaces.MemoryManager.chunk")
RESERVATION = Contract("A pass starts at `mark`, with what is kept after that in `replay`.", "augury.batch.Reservation")
STATE = Contract(
    "Whatever was accepted, undone, moved or reused, a slot holds the text of its request and nothing else.",
    "augury.interfaces.MemoryManager.commit",
)
TRUNCATE = Contract(
    "`truncate` keeps at most what it is asked for, and says how much.", "augury.interfaces.MemoryManager.truncate"
)
SUITABLE = Contract(
    "A memory manager suits some kind of state, and says of the others why not.", "augury.interfaces.MemoryManager.suitable"
)
BYTES = Contract("`n_bytes` covers what the slots keep.", "augury.interfaces.MemoryManager.n_bytes")
ERROR = Contract("A memory manager raises CapacityErrors alone.", "augury.interfaces.MemoryManager")
