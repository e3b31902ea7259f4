"""Attention whose cache holds one latent vector of each token in place of the keys and values of its heads."""

from __future__ import annotations

from attrs import frozen

from augury.blocks.block import Block, PositionIndexer
from augury.lowering.attention import Attend, MultiplyHeads, PrepareLatents
from augury.lowering.builder import Builder
from augury.lowering.operations import Gate, Multiply
from augury.lowering.parts import GateKind, Linear, Matrices, Norm, Rope, Temperature, Vector


@frozen
class LatentAttention(Block):
    """x += o(softmax(scale * q k^T) v), where k and v of all heads are made of one latent vector (L,) and R turned values.

    With n = norm(x), a token keeps c = kv_norm(the first L values of kv(n)) and r = rope(the others). Of q, which is made of
    n, or of q_norm(q_down(n)), head h has N values a and R values b. Its score of a token is (keys[h] a) · c + rope(b) · r;
    it mixes the c, and its input of o is values[h] of the mix.

    With `window` w a token at position p sees positions p-w+1 … p. With an `indexer` it sees those of them that this chooses;
    `reuses_choice`: the positions that the last indexer before chose.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1; the smaller of its two forms is stored.
    """

    norm: Norm
    q: Linear  # E, or the output of q_down → H * (N + R)
    kv: Linear  # E → L + R
    kv_norm: Norm  # of L values
    keys: Matrices  # by head, N → L
    values: Matrices  # by head, L → D_v
    o: Linear  # H * D_v → E
    scale: float
    rope: Rope | None
    q_down: Linear | None = None
    q_norm: Norm | None = None
    temperature: Temperature | None = None
    turned_norm: Norm | None = None  # of R values, before they are turned
    window: int | None = None
    indexer: PositionIndexer | None = None
    reuses_choice: int = 0  # positions of the blocks that were chosen; 0: it does not
    sinks: Vector | None = None  # (H,) scores that take part in softmax without a value
    gate: Linear | None = None  # E → H * D_v, or E → H: of n; its sigmoid multiplies the input of o, by value or by head

    @property
    def n_heads(self) -> int:
        """H."""
        return self.keys.n

    @property
    def latent_dim(self) -> int:
        """L."""
        return self.kv_norm.size

    @property
    def cached_dim(self) -> int:
        """L + R, values that are kept of a token."""
        return self.kv.n_out

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        latents = (("cache_type_k", 1, self.cached_dim),)
        return latents if self.indexer is None else (*latents, *self.indexer.cached())

    def lower(self, build: Builder) -> None:
        n, indexer, gate = build.normalize(build.x, self.norm), self.indexer, self.gate
        of_indexer = () if indexer is None else indexer.linears
        asking = (self.q, *of_indexer[:1])
        others = (*of_indexer[1:], self.kv, *(() if gate is None else (gate,)))
        if self.q_down is None:
            made = build.add(Multiply, n, (*asking, *others), "queries, latents")
            queries, made = made[: len(asking)], made[len(asking) :]
        else:
            made = build.add(Multiply, n, (*others, self.q_down), "queries, latents")
            queries = build.add(Multiply, build.normalize(made[-1], self.q_norm), asking, "queries")
        compared, (latents, *gates) = made[: len(of_indexer[1:])], made[len(of_indexer[1:]) : len(others)]
        choice = build.reuse_choice(self.reuses_choice) if self.reuses_choice else None
        if indexer is not None:
            choice = indexer.choose(build, (queries[1], *compared), 1)
        norms, rope, temperature = (self.kv_norm, self.turned_norm), self.rope, self.temperature
        q = build.add(PrepareLatents, queries[0], latents, self.keys, *norms, rope, temperature, 0)
        heads = (self.n_heads, self.latent_dim, self.scale)
        y = build.add(Attend, q, 0, None, *heads, window=self.window, sinks=self.sinks, choice=choice)
        y = build.add(MultiplyHeads, y, self.values)
        if gates:
            y = build.add(Gate, y, gates[0], GateKind.SIGMOID)
        build.add_product(y, self.o, "attention's output")
