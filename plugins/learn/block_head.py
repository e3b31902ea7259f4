"""A block head to be trained: like DSpark's, of one layer, and causal.

The file is as llama.cpp's converter writes DSpark heads, but for `attention.causal`: a place of a block sees none of the later
ones, so that a draft of fewer tokens is the beginning of a longer one. What is added to the logits after a token is made from
that token's embedding, which lets it be right for tokens that the texts do not have; the file has its row for each token.

Source: Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036); deepseek-ai/DeepSpec
(DSpark); hao-ai-lab/JetSpec (causal blocks).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from attrs import frozen

from augury.files.gguf_writer import EPSILON
from augury.plugins.learn.head import HeadSizes, Sample, TargetTensors, Weights

if TYPE_CHECKING:
    from gguf import GGUFWriter

    from augury.files.gguf import ModelFile

_SHARPNESS = 3.0  # how much the first queries look at the last hidden state
_NOISE = 0.2  # of queries and keys beside that
_PREFERENCE = 0.01
_N_AT_ONCE = 4096  # rows of the embedding


@frozen
class BlockSizes(HeadSizes):
    """The size of a block head."""

    mask: int = 0  # the token that stands for the drafted ones
    n_block: int = 4  # tokens that a block drafts
    rank: int = 128  # R, values of a token for the logits that are added after it

    architecture = "dflash"
    drafter = "draft-dspark"
    title = "DSpark head"
    flags: ClassVar[Mapping[str, bool]] = dict.fromkeys(("attention.causal", "sample_from_anchor", "has_confidence_head"), True)
    n_stages = 1
    rate = 5e-4  # no other was tried

    @property
    def n_steps(self) -> int:
        return self.n_block

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        e, found = self.n_embd, self._shapes_of_layers
        for i in range(self.n_layers):
            found |= {f"blk.{i}.attn_{name}_norm.weight": (self.head_dim,) for name in "qk"}
        return found | {
            "features.weight": (len(self.layers) * e,),
            "fc.weight": (e, len(self.layers) * e),
            "enc.output_norm.weight": (e,),
            "markov_w1.weight": (self.rank, e),
            "markov_w2.weight": (self.n_drafted, self.rank),
            "conf_proj.weight": (1, e + self.rank),
            "conf_proj.bias": (1,),
        }

    def first_weights(self, target: TargetTensors, sample: Sample, seed: int) -> Weights:
        """See `HeadSizes.first_weights`.

        Queries and keys are the same vector everywhere, with which a place looks at the last hidden state of the text, and at
        no place of the block: its keys have the other sign. The late layer's feature goes from there straight to the output.
        """
        weights, e = self._drawn(seed), self.n_embd
        for name in ("fc", *(f"blk.{i}.{part}" for i in range(self.n_layers) for part in ("attn_output", "ffn_down"))):
            weights[f"{name}.weight"] *= np.float32(0.1)
        for name in ("markov_w2.weight", "conf_proj.weight", "conf_proj.bias"):
            weights[name] *= np.float32(0)
        weights["features.weight"] = 1 / np.maximum(sample.spread, np.float32(1e-4))
        weights["fc.weight"][:, -e:] += np.eye(e, dtype=np.float32)
        weights["output_norm.weight"] = target.norm.copy()
        given = _normed((sample.features * weights["features.weight"]) @ weights["fc.weight"].T)
        tokens = np.append(sample.tokens, np.full(len(sample.tokens) // 8 + 1, self.mask, np.int32))
        inside = _normed(target.embedding(tokens))
        self._look_back(weights, given, inside)
        return weights

    def _look_back(self, weights: Weights, given: np.ndarray, inside: np.ndarray) -> None:
        """Let the first layer pass on the last of what it is given, (n, E); its inputs in blocks are like (m, E)."""
        of_queries = _direction(inside, np.ones(len(inside), np.float32))
        signs = np.repeat(np.array([1, -1], np.float32), [len(given), len(inside)])
        of_keys = _direction(np.concatenate([given, inside]), signs)
        half, n_turned = self.head_dim // 2, max(self.head_dim // 8, 1)  # the pairs that turn fastest
        angles = self.rope_base ** (-np.arange(n_turned) / half)  # a query and the key one place before meet
        query, key = (np.zeros(self.head_dim, np.float32) for _ in range(2))
        size = (self.head_dim / n_turned) ** 0.5
        key[:n_turned], query[:n_turned], query[half : half + n_turned] = size, size * np.cos(angles), -size * np.sin(angles)
        same = np.eye(self.n_heads * self.head_dim, self.n_embd, dtype=np.float32)
        for name, vector, direction in (("q", query, of_queries), ("k", key, of_keys)):
            weights[f"blk.0.attn_{name}.weight"] *= np.float32(_NOISE)
            weights[f"blk.0.attn_{name}.weight"] += np.outer(np.tile(vector, self.n_heads), direction)
        weights["blk.0.attn_q_norm.weight"] *= np.float32(_SHARPNESS)
        weights["blk.0.attn_v.weight"] = 0.1 * weights["blk.0.attn_v.weight"] + same
        weights["blk.0.attn_output.weight"] += same.T

    @classmethod
    def _further(cls, file: ModelFile) -> dict[str, int]:
        eos = file.get("tokenizer.ggml.eos_token_id", int, 0)  # nothing is drafted after it
        return {"mask": file.get("tokenizer.ggml.mask_token_id", int, eos)}

    def _further_of(self, head: ModelFile) -> dict[str, int]:
        mask, n_block = head.get("tokenizer.ggml.mask_token_id", int), head.get("dflash.block_size", int)
        return {"mask": mask, "n_block": n_block, "rank": head.tensor("markov_w1.weight").shape[-1]}

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        found = self.shapes | {"markov_w1.weight": (self.n_vocab, self.rank)}
        del found["features.weight"]
        return found

    def weights_of(self, head: ModelFile, first: Weights, target: TargetTensors) -> Weights:
        found = {name: head.tensor(name).floats().copy() for name in self.shapes if name != "features.weight"}
        tokens = np.random.default_rng(0).permutation(self.n_vocab)[: 4 * self.n_embd]
        rows, _, _, _ = np.linalg.lstsq(_normed(target.embedding(tokens)), found["markov_w1.weight"][tokens], rcond=None)
        scale = first["features.weight"]
        return found | {"features.weight": scale, "fc.weight": found["fc.weight"] / scale, "markov_w1.weight": rows.T.copy()}

    def stored(self, weights: Weights, target: TargetTensors) -> Weights:
        kept = {**weights, "fc.weight": weights["fc.weight"] * weights["features.weight"]}
        del kept["features.weight"]
        chunks = np.array_split(np.arange(target.n_vocab), -(-target.n_vocab // _N_AT_ONCE))
        made = [_normed(target.embedding(chunk)) @ weights["markov_w1.weight"].T for chunk in chunks]
        return kept | {"markov_w1.weight": np.concatenate(made)}

    def describe(self, writer: GGUFWriter) -> None:
        self._describe_head(writer)
        writer.add_uint32("dflash.block_size", self.n_block)
        writer.add_mask_token_id(self.mask)


def _normed(x: np.ndarray) -> np.ndarray:
    """Values (..., n) of a root mean square of 1."""
    values: np.ndarray = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
    return values


def _direction(x: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The vector (E,) whose products with x (n, E) are most like those wanted (n,), with some preference for a short one."""
    squares = x.T @ x + np.float32(_PREFERENCE * len(x)) * np.eye(x.shape[1], dtype=np.float32)
    found: np.ndarray = np.linalg.solve(squares, x.T @ wanted)
    return found
