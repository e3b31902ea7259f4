"""The tables of compiled loops: a joint tree is two, its nodes and their chances; trials are counted by bucket."""

from augury.compiled import ImportedLater

kernels = ImportedLater("augury.speculation.kernels")

TOKEN, PARENT, FIRST, PROPOSERS, IS_DRAWN = range(5)  # of a tree's nodes; drafters are bits; the first one by itself, too
CHANCE, REACH = range(2)

TYPICAL = 0
"""The bucket of all tokens together; among siblings only the first one's."""
STEPS = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # of chances, in which agreement is learnt apart
KEEP_ALL = 0.998  # of the trials of all requests with each new one
