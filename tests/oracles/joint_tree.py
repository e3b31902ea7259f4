"""Joint trees and agreement in objects of Python: what the kernels were made of, and decide still."""

from bisect import bisect

ALONE, AGREED, CONTESTED = range(3)
STEPS = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
KEEP, CERTAIN = 0.998, 0.995


class JointTree:
    def __init__(self):
        self.tokens = []
        self.parents = []
        self.chances = []
        self.proposers = []
        self.children = {}
        self.drawn = {}
        self._rivals = {}  # by parent: who alone proposes something after it; None: several do

    def add(self, proposer, draft, chances, after=-1):
        """Merge a proposal into it; returns the nodes of its tokens."""
        probabilities, at = draft.probabilities, after
        parents = None if draft.parents is None else draft.parents.tolist()
        nodes = []
        rivals, proposers = self._rivals, self.proposers
        for i, (token, chance) in enumerate(zip(draft.tokens.tolist(), chances, strict=True)):
            if parents is not None:
                at = nodes[parents[i]] if parents[i] >= 0 else after
            if (siblings := self.children.get(at)) is None:
                siblings = self.children[at] = {}
                rivals[at] = proposer
            elif rivals[at] is not proposer:
                rivals[at] = None
            if (node := siblings.get(token)) is None:
                node = siblings[token] = len(proposers)
                proposers.append([proposer])
                self.tokens.append(token)
                self.parents.append(at)
                self.chances.append(chance)
            elif proposer not in proposers[node]:
                proposers[node].append(proposer)
                self.chances[node] = max(self.chances[node], chance)
            else:
                self.chances[node] = max(self.chances[node], chance)
            if probabilities is not None and probabilities[i, token] > 0 and self.drawn.keys().isdisjoint(siblings.values()):
                self.drawn[node] = probabilities[i]
            nodes.append(node)
            at = node
        return nodes

    def forbid(self, nodes):
        """No node but these, which are rising, can be right."""
        allowed = set(nodes)
        self.chances = [chance if node in allowed else 0.0 for node, chance in enumerate(self.chances)]

    def reach(self, agreement):
        """By node: the chance that it is accepted."""
        reach = agreement.of(self.kinds(range(len(self.chances))), self.chances)
        for parent, siblings in self.children.items():  # parents come before their children
            before = reach[parent] if parent >= 0 else 1.0
            if len(siblings) == 1:
                for node in siblings.values():
                    reach[node] *= before
                continue
            chances = [reach[node] for node in siblings.values()]
            total, most = sum(chances), max(chances)
            rest = (1 - most) / (total - most) if total > 1 else 1.0  # the share of the others
            best = chances.index(most)
            for i, node in enumerate(siblings.values()):
                reach[node] = chances[i] * (1.0 if i == best else rest) * before
        return reach

    def kinds(self, nodes):
        """Of each of these nodes: whether other drafters propose the same, or something else after its parent."""
        return [
            AGREED if len(self.proposers[node]) > 1 else CONTESTED if self._rivals[self.parents[node]] is None else ALONE
            for node in nodes
        ]

    def teach(self, agreement, emitted):
        """Let it learn from the emitted tokens."""
        chances, right = self.chances, -1
        for token in emitted:
            siblings = self.children.get(right, {})
            right = siblings.get(token, -1)
            for node, kind in zip(siblings.values(), self.kinds(siblings.values()), strict=True):
                if 0 < chances[node] < 1:
                    agreement.see(kind, chances[node], is_right=node == right)
            if right < 0:
                break

    def best_path(self, reach):
        """The nodes from the history on, each time to the child that was drawn, or else to the likeliest."""
        path = []
        while siblings := self.children.get(path[-1] if path else -1):
            drawn = [node for node in siblings.values() if node in self.drawn] if self.drawn else ()
            best = drawn[-1] if drawn else max(siblings.values(), key=reach.__getitem__)
            if not drawn and reach[best] <= 0:
                break
            path.append(best)
        return path


class Agreement:
    def __init__(self, expected, n_right, ratios):
        self.expected, self.n_right, self.ratios = expected, n_right, ratios

    def of(self, kinds, chances):
        """The chances of tokens to which their own drafters give `chances`; a certain or forbidden one stays so."""
        return [
            min(CERTAIN, chance * self.ratios[3 * bisect(STEPS, chance) + kind]) if 0 < chance < 1 else chance
            for kind, chance in zip(kinds, chances, strict=True)
        ]

    def see(self, kind, chance, *, is_right):
        """Such a token was right or wrong."""
        place = 3 * bisect(STEPS, chance) + kind
        self.expected[place] = self.expected[place] * KEEP + chance
        self.n_right[place] = self.n_right[place] * KEEP + is_right
        self.ratios[place] = self.n_right[place] / self.expected[place]
