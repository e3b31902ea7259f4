"""The rows of a joint tree's tables, by name: see `augury.speculation.joint_tree`."""

__all__ = ["CHANCE", "FIRST", "IS_DRAWN", "PARENT", "PROPOSERS", "REACH", "TOKEN"]

TOKEN, PARENT, FIRST, PROPOSERS, IS_DRAWN = range(5)  # drafters are bits; the first one by itself, too
CHANCE, REACH = range(2)
