"""The rows of a joint tree's tables, by name: see `augury.speculation.joint_tree`."""

TOKEN, PARENT, FIRST, PROPOSERS, IS_DRAWN = range(5)  # drafters are bits; the first one by itself, too
CHANCE, REACH = range(2)
