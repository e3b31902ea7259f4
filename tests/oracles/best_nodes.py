"""The choice of the best nodes, node by node: what a planner decided before its steps were joined, which it decides still."""

from augury.speculation.drafts import Best

GAIN, UNLIKELY = 0.02, 0.003


def best_nodes(slots, curve, *, replays_accepted=False):
    """Rank the nodes of all trees by their chance to be accepted, and take the first n, for the best n."""
    reach, drawn = [slot.reach().tolist() for slot in slots], [slot.drawn for slot in slots]
    ranked = sorted(
        [
            (True, -chance, i, node) if node not in drawn[i] else (False, drawn[i].index(node), i, node)
            for i, chances in enumerate(reach)
            for node, chance in enumerate(chances)
            if chance > UNLIKELY or node in drawn[i]
        ]
    )
    most = len(slots) + sum([chance for chances in reach for chance in chances])  # tokens, if all nodes were verified
    draft_s = sum([drafter.spent_s for slot in slots for drafter in slot.by_drafter])
    counts, sums, lost = [0] * len(slots), [0.0] * len(slots), [0.0] * len(slots)
    taken = []
    left_out = set()
    n, n_best, n_short, expected = 0, 0, 0, float(len(slots))
    best_rate = (expected + GAIN) / (curve.hoped[0] + draft_s)
    for is_chosen, _, i, node in ranked:
        slot, count, chance = slots[i], counts[i], reach[i][node]
        if count == slot.limit:
            continue
        if is_chosen and most <= best_rate * (curve.hoped[n + 1] + draft_s):
            break  # no further node can pay
        if (i, slot.tree.parents[node]) in left_out or (is_chosen and not _is_covered(slot, node, count, curve, n)):
            left_out.add((i, node))
            continue
        n_short += (count + 1 < slot.n_min) - (0 < count < slot.n_min)
        taken.append((i, node, chance))
        n += 1
        counts[i], sums[i], expected = count + 1, sums[i] + chance, expected + chance
        replay_s = 0.0
        if replays_accepted:  # tokens accepted where a later one is not; each takes as long as a drafted one
            lost[i] = max(sums[i] - counts[i] * chance, 0.0)
            replay_s = curve.extra_s(n) / n * sum(lost)
        rate = expected / (curve.hoped[n] + draft_s + replay_s)
        if not is_chosen or (rate > best_rate and not n_short):
            n_best, best_rate = n, rate
    nodes = [[] for _ in slots]
    tokens = [1.0] * len(slots)
    for i, node, chance in taken[:n_best]:
        nodes[i].append(node)
        tokens[i] += chance
    return Best([sorted(each) for each in nodes], tokens)


def _is_covered(slot, node, count, curve, n):
    """Whether a slot may take one token more, after `count` of its own, into a pass with n drafted ones."""
    for drafter in slot.tree.proposers[node]:
        if drafter.profile.is_costly or drafter.profile.is_certain:
            return True
    return slot.drafters.budget.covers(curve.known[n + 1] - curve.known[n - count], is_least=count < slot.n_min)
