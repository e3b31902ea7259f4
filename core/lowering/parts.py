"""The parts of blocks: matrices, norms and other tensors of a model file, with their numbers."""

from __future__ import annotations

import math
from enum import Enum
from typing import ClassVar

import numpy as np
from attrs import field, fields, frozen


@frozen
class HasParts:
    """A record whose fields name tensors of a model file."""

    def tensors(self) -> tuple[BlockTensors, ...]:
        """Its parts of the file in the order of its fields, parts of fields included."""
        values = [getattr(self, each.name) for each in fields(type(self))]
        parts = [each for each in values if isinstance(each, BlockTensors | HasParts)]
        return tuple(part for each in parts for part in ((each,) if isinstance(each, BlockTensors) else each.tensors()))

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its matrices, which multiply rows."""
        return tuple(part for part in self.tensors() if isinstance(part, Linear))


class Activation(Enum):
    """The function that a feed-forward applies to its gate before the product with `up`, or to `up` if it has no gate."""

    SILU = "silu"  # g * sigmoid(g)
    GELU = "gelu"  # tanh approximation, as ggml and the models trained with it use
    GELU_HALF = "gelu_half"  # the same, of g rounded to half precision, and rounded so; 0 below -10, g above 10: as ggml has it
    RELU = "relu"  # max(g, 0)
    RELU_SQUARED = "relu_squared"  # max(g, 0)^2
    SITU = "situ"  # cap(g) * sigmoid(g), and cap(up), cap(x) = c * tanh(x / c), or x where c is 0; constants: c of g, of up
    XIELU = "xielu"  # p g^2 + b g above 0, n (e^min(g, eps) - 1 - g) + b g below; constants: n, p, b, eps
    SWIGLU_OAI = "swiglu_oai"  # with g up to 7: g * sigmoid(1.702 g), and `up` between -7 and 7, plus 1


class NormKind(Enum):
    """The divisor of a norm."""

    RMS = "rms"  # x / sqrt(mean(x^2) + eps)
    LAYER = "layer"  # (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)


class GateKind(Enum):
    """The function of a gate's values before they multiply."""

    SIGMOID = "sigmoid"  # 1 / (1 + e^-g)
    SOFTPLUS = "softplus"  # ln(1 + e^g)


@frozen
class RowSelection:
    """Rows of a stored matrix: groups of `size` from `first` on, one every `step` rows, of `n_stored` in all.

    Files fuse matrices: of `attn_qkv` a `Linear` takes `RowSelection(0, n_q, n_stored, n_stored)` and so on; where heads of
    queries and gates alternate, `RowSelection(D, D, 2 * D, n_stored)` are the gates.
    """

    first: int
    size: int
    step: int
    n_stored: int

    def of(self, stored: np.ndarray) -> np.ndarray:
        """A view of these rows of a stored tensor (n_stored, ...): (groups, size, ...)."""
        return stored.reshape(-1, self.step, *stored.shape[1:])[:, self.first : self.first + self.size]


@frozen(eq=False)
class LowRank:
    """y += up.T (s * (down x)): s has for each of R rows the scale that its adapter has in the token's slot.

    A row whose scale is 0 adds nothing, so that y keeps its bits. Several adapters' rows follow one another.
    """

    down: np.ndarray = field(repr=False)  # (R, n_in) float32
    up: np.ndarray = field(repr=False)  # (R, n_out) float32
    adapters: np.ndarray = field(repr=False)  # (R,) int32, of each row the column in `Batch.scales`
    n_adapters: int  # of these columns


@frozen
class Linear:
    """y = scale * (W x) + bias_scale * b, with W of shape (n_out, n_in) as the file stores it, or of `rows` of it.

    Files may carry a scale per weight (`blk.0.attn_q.scale`); whether it covers the bias differs between blocks.
    """

    weight: str
    n_in: int
    n_out: int
    bias: str | None = None
    scale: float = 1.0
    bias_scale: float = 1.0
    rows: RowSelection | None = None  # of the weight, and of the bias
    has_own_bias: bool = False  # the bias has only these rows: it is stored as (n_out,) in any case
    low_rank: LowRank | None = None  # what adapters add to y

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors by name, and their shapes in the file."""
        n_stored = self.n_out if self.rows is None else self.rows.n_stored
        of_bias = {} if self.bias is None else {self.bias: (self.n_out if self.has_own_bias else n_stored,)}
        return {self.weight: (n_stored, self.n_in), **of_bias}

    def of(self, stored: np.ndarray) -> np.ndarray:
        """Its rows (n_out, ...) of a stored tensor (n_stored, ...)."""
        return stored if self.rows is None else self.rows.of(stored).reshape(-1, *stored.shape[1:])

    def bias_of(self, stored: np.ndarray) -> np.ndarray:
        """The numbers (n_out,) that it adds to products, by the stored bias."""
        return self.bias_scale * (stored if self.has_own_bias else self.of(stored))


@frozen
class Vector:
    """A small tensor of the file, of `size` numbers, that takes part as it is."""

    weight: str
    size: int
    stored: tuple[int, ...] | None = None  # its shape in the file; None: (size,)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensor by name, and its shape."""
        return {self.weight: self.stored or (self.size,)}


@frozen
class Integers:
    """A tensor of the file that holds whole numbers (I32 or I64) instead of weights."""

    weight: str
    shape: tuple[int, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensor by name, and its shape."""
        return {self.weight: self.shape}


@frozen
class Norm:
    """x / sqrt(mean(x^2) + eps) * weight + bias over `size` values, or as `kind` says."""

    weight: str | None  # None: 1
    size: int
    eps: float
    bias: str | None = None
    kind: NormKind = NormKind.RMS
    weight_shape: tuple[int, int] | None = None  # (H, D), or (H, 1): every head has weights of its own; None: (size,)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors by name, and their shapes."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.weight is not None:
            shapes[self.weight] = self.weight_shape or (self.size,)
        if self.bias is not None:
            shapes[self.bias] = (self.size,)
        return shapes


@frozen
class SequenceState:
    """Something that a block keeps of each sequence, updated in place, token by token."""

    shape: tuple[int, ...]  # of floats
    n_fed: int  # floats of its input for a token, which are kept aside for a drafted one

    @property
    def size(self) -> int:
        """Floats of one sequence."""
        return math.prod(self.shape)


@frozen
class Convolution:
    """y[c] at t = b[c] + sum over j of W[c, j] x[c] at t - (size - 1 - j) * dilation: every channel by itself."""

    weight: str
    n_channels: int  # C
    size: int
    bias: str | None = None
    stored: tuple[int, ...] | None = None  # the shape of the weights in the file; None: (C, size)
    dilation: int = 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors by name, and their shapes."""
        shapes = {self.weight: self.stored or (self.n_channels, self.size)}
        return shapes if self.bias is None else shapes | {self.bias: (self.n_channels,)}

    @property
    def state(self) -> SequenceState:
        """The inputs that its next output needs, (size - 1, C) without dilation, the last one last."""
        return SequenceState(((self.size - 1) * self.dilation, self.n_channels), self.n_channels)

    def taps(self, weights: np.ndarray) -> np.ndarray:
        """The weight of each channel (…, C) by input, the oldest first, from the tensor's numbers."""
        rows = weights.reshape(-1, self.size).T
        taps = np.zeros(((self.size - 1) * self.dilation + 1, self.n_channels), weights.dtype)
        taps[:: self.dilation] = rows
        return taps


@frozen
class LinearRecurrence:
    """S = decay * S + key (beta * value)^T of each head, y = S^T query; with the delta rule, of value - (decay * S)^T key.

    Of the parts of S (K, V) that belong to one of a value's channels the decay may differ: there it is exp(a * beta), with an a
    for each number of S, and every channel has a beta. Or it differs between the rows of S, of which each has a decay.
    """

    n_heads: int  # H, each with a value, a decay and a beta
    n_key_heads: int  # G, whose queries and keys H / G heads share
    key_dim: int  # K
    value_dim: int  # V
    has_delta: bool
    is_tiled: bool = False  # head h has the key h % G; otherwise h // (H / G)
    is_by_channel: bool = False  # decays differ within a head, which is the only one
    is_by_key: bool = False  # decays differ within a head, K of each

    @property
    def state(self) -> SequenceState:
        """(H, K, V); fed are keys, values, betas, and decays that are not made of these."""
        n_steps = self.value_dim if self.is_by_channel else 1 + (self.key_dim if self.is_by_key else 1)
        n_fed = self.n_key_heads * self.key_dim + self.n_heads * (self.value_dim + n_steps)
        return SequenceState((self.n_heads, self.key_dim, self.value_dim), n_fed)


@frozen
class Matrices:
    """A matrix for each of n experts or heads, in one tensor (n, n_stored, n_in): y = scales[i] * (W_i x) + b_i.

    W_i are `n_out` of the stored rows, from `first` on: files may hold two matrices in one. The stored tensor may be (n_stored,
    n_out), its `n_in` rows from `first` on the columns of W_i; and the first two axes of the tensor may be one.
    """

    weight: str
    n: int
    n_in: int
    n_out: int
    first: int = 0
    n_stored: int | None = None  # None: as many as there are in W_i
    bias: str | None = None  # (n, n_stored)
    scales: tuple[float, ...] | None = None  # (n,)
    is_transposed: bool = False
    is_flat: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors by name, and their shapes."""
        n_rows, n_columns = self.n_rows, self.n_out if self.is_transposed else self.n_in
        shape = (self.n * n_rows, n_columns) if self.is_flat else (self.n, n_rows, n_columns)
        shapes: dict[str, tuple[int, ...]] = {self.weight: shape}
        if self.bias is not None:
            shapes[self.bias] = (self.n, n_rows)
        return shapes

    @property
    def n_rows(self) -> int:
        """Rows of each in the stored tensor."""
        return self.n_stored or (self.n_in if self.is_transposed else self.n_out)

    def of(self, stored: np.ndarray) -> np.ndarray:
        """A view of the used rows of each, of numbers or bytes as they are stored: (n, rows, ...)."""
        n_used = self.n_in if self.is_transposed else self.n_out
        return stored.reshape(self.n, self.n_rows, -1)[:, self.first : self.first + n_used]


BlockTensors = Linear | Matrices | Norm | Vector | Integers | Convolution
"""A block's tensors of the model file."""


class Gating(Enum):
    """The function that makes experts' weights of a router's logits."""

    SOFTMAX = "softmax"  # over all experts
    SIGMOID = "sigmoid"
    SOFTMAX_OF_CHOSEN = "softmax of chosen"  # over the chosen experts, by their logits
    SQRT_SOFTPLUS = "sqrt softplus"  # sqrt(ln(1 + e^l))


@frozen
class Router(HasParts):
    """Chooses a token's experts and weighs them.

    Scores are the gated logits, plus `bias` where there is one; the `n_used` experts of highest score are chosen, equal ones by
    number. With groups, of experts that stand beside each other, only those of the `n_groups_used` groups are candidates whose
    two highest scores have the greatest sum. Their weights are the gated logits without the bias; `is_normalised`, they are
    divided by their sum, or by `LEAST_SUM` where it is less; and multiplied with `scale`. With `n_alike`, candidate e is
    expert e // n_alike, and weighed as such.

    With `token_experts`, no scores are compared: the row of a token's id names its experts, some perhaps more than
    once. They are weighed as others are.
    """

    logits: Linear  # E → n_experts
    n_used: int
    gating: Gating
    bias: Vector | None = None  # (n_experts,)
    is_normalised: bool = False
    scale: float = 1.0
    n_groups: int = 1
    n_groups_used: int = 1
    norm: Norm | None = None  # the logits are of this norm of x, not of the experts' input
    is_early: bool = False  # the logits are of x as it is before the layer, without a norm
    n_alike: int = 1  # candidates that are one expert
    token_experts: Integers | None = None  # (V, n_used), each below n_experts

    LEAST_SUM: ClassVar[float] = 2.0**-14


@frozen
class Experts:
    """Feed-forwards that a router chooses among and weighs: down_e(activation(gate_e(x)) * up_e(x)). See `MixtureOfExperts`."""

    router: Router
    gate: Matrices | None
    up: Matrices
    down: Matrices
    activation: Activation
    limit: float | None
    limits_activated: bool
    weighs_input: bool
    constants: tuple[float, ...]


@frozen(eq=False)
class Rope:
    """Rotary position embedding over `2 * len(frequencies)` values of a head, from `offset` on; the others are left alone.

    Pair i at position p turns by the angle `(p + ahead) * frequencies[i]`; cos and sin are multiplied by `magnitude`. Linear,
    YaRN and llama-3 scaling are all of this form (see `augury.plugins.architectures.rope`), so backends know none of them.
    LongRoPE has other frequencies for contexts of more than `n_ctx_short` positions: `ModelPlan.for_context` chooses.
    """

    frequencies: np.ndarray = field(repr=False)  # (D_rot / 2,) float64, radians per position
    magnitude: float = 1.0
    is_interleaved: bool = False  # pairs are (0,1)(2,3)… where true; (0,D/2)(1,D/2+1)… (NeoX) where false
    long_frequencies: np.ndarray | None = field(default=None, repr=False)  # (D_rot / 2,) float64
    n_ctx_short: int = 0
    offset: int = 0
    ahead: int = 0  # positions by which it is turned further

    @property
    def key(self) -> tuple[object, ...]:
        """The numbers that `turns` depends on beside that of positions; ropes themselves are compared by identity."""
        return "turns", self.frequencies.tobytes(), self.magnitude, self.ahead

    def turns(self, n: int) -> np.ndarray:
        """The cosines and sines of the first n positions, with the magnitude: (n, 2, D_rot / 2) float64."""
        angles = np.arange(self.ahead, self.ahead + n, dtype=np.float64)[:, None] * self.frequencies
        return np.stack([np.cos(angles), np.sin(angles)], axis=1) * self.magnitude


@frozen
class Temperature:
    """Queries at position p are multiplied by 1 + scale * log(1 + floor((p + offset) / period)): sharper, the further on."""

    scale: float
    period: float
    offset: float = 0.0

    def factors(self, n: int) -> np.ndarray:
        """The factors of the first n positions, (n,) float64."""
        return 1.0 + self.scale * np.log1p((np.arange(n) + self.offset) // self.period)


@frozen
class Preparation:
    """Steps on the values of a head, in this order, or with the rope before the norm."""

    clamp: float | None = None  # to [-clamp, clamp]
    norm: Norm | None = None
    rope: Rope | None = None
    temperature: Temperature | None = None
    is_rope_first: bool = False
    lag: int = 0  # positions by which heads are turned less than their token's, which is 0 at least

    @property
    def is_nothing(self) -> bool:
        """Whether heads stay as they are."""
        return self.clamp is None and self.norm is None and self.rope is None and self.temperature is None
