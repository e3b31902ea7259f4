"""How the weight types are laid out once packed for the kernels.

A matrix is cut into panels of 32 rows (two groups of 16: one vector of 16 lanes each; missing rows are zero) and each panel
into blocks of 32 columns. One, two or eight blocks make a unit, which carries scales; units follow each other, so that
a panel is one stream of bytes. Mostly these are as many as the rows take in the model file. Types whose file holds indices into
a codebook (IQ1 to IQ3) or five weights to a byte (TQ1_0) take more: their values are written out, in the fewest bits that need
no table beyond a register. Types that mean the same numbers share one format.

unit = scales, then per block the planes. A *logical vector* v of a block is 64 bytes: 16 rows x columns 4v..4v+3, one
unsigned byte each, the operand of a byte dot product. The low plane holds `low` bits of each, 8/low logical vectors to a
stored vector, the first in the lowest bits; the high plane holds the next `high` bits likewise. Stored vectors alternate
between the two groups. A weight is `scale * (byte - offset) + minimum`; where the format has `values`, three or four bits stand
for one of 8 or 16 and `byte` is that value plus the offset. Where eight columns share the highest of these bits, it is kept
with the scales.

Scales by `coding`, each array of 32 rows (f16 or bytes):

* `f16`: d, and m where there is a minimum
* `six`: d, dmin, then per pair of blocks three bytes, little-endian: 6 bits scale, 6 bits minimum, the same of the odd block
* `six_signed`: d, then likewise two scales of 6 bits, 32 too large, for the two halves of each block
* `six_single`: d, then likewise one scale of 6 bits, 32 too large, for each of four blocks
* `byte`: d, then per block two signed bytes, the scales of its halves
* `nibble`: d, dmin, then per block two bytes, scale and (high) minimum of its halves
* `odd`: d, then per block a byte, two numbers s of 4 bits for its halves: the scale is `factor * (2s + 1) * d`
* `odd_single`: d, then likewise one number of 4 bits for each of two blocks
* `exponent`: a byte e, the scale is 2**(e - 128)
* `float8`: per block two bytes for its halves, twice the scale: 4 bits exponent, 3 bits fraction, 2**-9 the smallest above 0

Highest bits that are shared come last: per pair of blocks a byte, 4 bits for the columns of each.

In front of the panels lies, for the panels from the last to the first, a float16 of each row: the exponent of the power of
two that brings the row's largest weight near 2**13, for kernels that compute weights in float16. It is NaN where weights are
not finite.

Float weights have none of these, and no scales: a unit is 32 columns x 32 rows of the numbers themselves.
"""

from __future__ import annotations

from attrs import field, frozen

# The values of four bits. IQ4: steps that fit weights' usual distribution; MXFP4: twice the numbers of a float of four bits
# (sign, two bits exponent, one bit fraction). Source: kvalues_iq4nl and kvalues_mxfp4 of ggml-common.h.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# Codebooks: magnitudes, then the same with a minus. IQ1: eight times -1, 0, 1, all a bit more or a bit less.
# Source: iq2xxs_grid, iq3xxs_grid, iq3s_grid and IQ1S_DELTA of ggml-common.h.
IQ1_VALUES = (-7, 1, 9, 0, -9, -1, 7, 0)
IQ2_VALUES = (8, 25, 43, 0, -8, -25, -43, 0)
IQ3_XXS_VALUES = (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62)
IQ3_S_VALUES = (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15)
# Bytes of a row of a unit: numbers after d, and all scales, without minima and without bits that columns share.
_NUMBER_BYTES = {"f16": 0, "six": 12, "six_signed": 12, "six_single": 6, "byte": 16, "nibble": 16, "odd": 8, "odd_single": 4}
_ROW_BYTES = {"exponent": 1, "float8": 4} | {coding: 2 + n_bytes for coding, n_bytes in _NUMBER_BYTES.items()}

# The largest number that a scale is, in units of d.
_LARGEST_SCALES = {"f16": 1, "six": 63, "six_signed": 32, "six_single": 32, "byte": 128, "nibble": 15, "odd": 31}
_LARGEST_SCALES |= {"odd_single": 31, "exponent": 1, "float8": 240}

PANEL_ROWS = 32
BLOCK = 32  # columns
VECTOR = 64  # bytes
EXPONENT_BYTES = 2 * PANEL_ROWS  # of a panel's rows


@frozen
class Format:
    """The packed form of a weight type, named like the type, or like one of the types that share it."""

    kind: str
    unit_blocks: int = 1
    low: int = 0
    high: int = 0
    offset: int = 0
    coding: str = "f16"
    values: tuple[int, ...] = ()
    factor: float = 1.0
    is_shared: bool = field(default=False, metadata={"unit": "whether eight columns share their highest bit"})
    float_bytes: int = field(default=0, metadata={"unit": "bytes of a weight that is a number of its own; 0 if quantised"})

    @property
    def has_minimum(self) -> bool:
        """Whether a minimum is added to the scaled weight."""
        return self.kind in {"q4_1", "q5_1", "q2_k", "q4_k", "q5_k"}

    @property
    def bits(self) -> int:
        """Bits of the byte that a dot product takes for a weight."""
        return max(value + self.offset for value in self.values).bit_length() if self.values else self.low + self.high

    @property
    def largest(self) -> tuple[float, float]:
        """The largest magnitude of a weight, in units of d (of 1, where a coding has none), and of its minimum."""
        numbers = self.values or (self.offset, (1 << self.bits) - 1 - self.offset)
        scale = _LARGEST_SCALES[self.coding]
        return max(map(abs, numbers)) * scale * self.factor, scale

    @property
    def is_easy(self) -> bool:
        """Whether a block is unpacked in few instructions: its scale is one number, and its weights are in one plane."""
        return self.coding == "f16" and not self.high

    @property
    def halves(self) -> int:
        """How many scales a block of 32 columns has."""
        return 2 if self.coding in {"six_signed", "byte", "nibble", "odd", "float8"} else 1

    @property
    def scale_bytes(self) -> int:
        """Bytes of a unit before its planes."""
        if self.float_bytes:
            return 0
        return PANEL_ROWS * (_ROW_BYTES[self.coding] + (2 if self.has_minimum else 0) + self.shared_bytes)

    @property
    def shared_bytes(self) -> int:
        """Bytes of a row of a unit for bits that columns share."""
        return self.unit_blocks // 2 if self.is_shared else 0

    @property
    def block_bytes(self) -> int:
        """Bytes of the planes of one block."""
        return PANEL_ROWS * BLOCK * self.float_bytes or 2 * VECTOR * (self.low + self.high)

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit of 32 rows."""
        return self.scale_bytes + self.unit_blocks * self.block_bytes

    @property
    def activation(self) -> str:
        """The activations that these weights are multiplied with."""
        return "f32" if self.float_bytes else "q8_16"


FORMATS = {
    fmt.kind: fmt
    for fmt in (
        Format("f32", float_bytes=4),
        Format("f16", float_bytes=2),
        Format("bf16", float_bytes=2),
        Format("q8_0", low=8, offset=128),
        Format("q4_0", low=4, offset=8),
        Format("q4_1", low=4),
        Format("q5_0", low=4, high=1, offset=16),
        Format("q5_1", low=4, high=1),
        Format("q2_k", 8, low=2, coding="nibble"),
        Format("q3_k", 8, low=2, high=1, offset=4, coding="six_signed"),
        Format("q4_k", 8, low=4, coding="six"),
        Format("q5_k", 8, low=4, high=1, coding="six"),
        Format("q6_k", 8, low=4, high=2, offset=32, coding="byte"),
        Format("tq2_0", 8, low=2, offset=1),
        Format("iq1_m", 8, low=2, offset=16, coding="odd", values=IQ1_VALUES, factor=1 / 8, is_shared=True),
        Format("iq2_s", 8, low=2, high=1, offset=64, coding="odd", values=IQ2_VALUES, factor=1 / 8),
        Format("iq3_xxs", 8, low=4, offset=64, coding="odd_single", values=IQ3_XXS_VALUES, factor=1 / 4),
        Format("iq3_s", 8, low=4, offset=16, coding="odd_single", values=IQ3_S_VALUES),
        Format("iq4_nl", low=4, offset=128, values=IQ4_VALUES),
        Format("iq4_xs", 8, low=4, offset=128, coding="six_single", values=IQ4_VALUES),
        Format("mxfp4", low=4, offset=16, coding="exponent", values=MXFP4_VALUES),
        Format("nvfp4", 2, low=4, offset=16, coding="float8", values=MXFP4_VALUES),
    )
}
_SHARED = {"tq1_0": "tq2_0", "iq1_s": "iq1_m", "iq2_xxs": "iq2_s", "iq2_xs": "iq2_s"}
FORMATS |= {kind: FORMATS[other] for kind, other in _SHARED.items()}  # by weight type

# Activations, laid out [block][token]: a matrix kernel reads one block of all its tokens in a row.
# q8_16: 32 signed bytes, then of each half of them: two i32 -sum | two f32 scale; last the f32 sum of all 32 activations.
# A scale for each 16 columns nearly halves the rounding error of one for each 32: docs/benchmarks.md has the figures.
# bf16: 32 numbers, in the order that tiles of weights have columns in. bf16x2: 32 numbers, and the remainder of each.
ACTIVATION_BYTES = {"q8_16": 52, "bf16": 2 * BLOCK, "bf16x2": 4 * BLOCK, "f32": 4 * BLOCK}
HALVES = 2
NEGATIVE_SUMS, SCALES, SUM = 32, 40, 48
