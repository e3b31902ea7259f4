"""Heads as their trainers publish them, with random weights, and what the trainers' models compute with them, in numpy.

`write(path, config, tensors)` makes a folder; `eagle_tensors`, `dflash_tensors` and `mtp_tensors` draw weights by a config, and
`Eagle`, `DFlash` and `Mtp` compute, float64, as the models in PyTorch do that are named there.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from safetensors import TensorSpec, serialize_file

E, H, G, D, F = 256, 4, 2, 32, 96
SIZES = {
    "hidden_size": E,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": D,
    "intermediate_size": F,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 500.0,
    "hidden_act": "silu",
}
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")
KEY = "eagle_aux_hidden_state_layer_ids"
_KINDS = {"f": "float32", "i": "int64", "b": "bool", "u": "bfloat16"}


def write(path: Path, config: dict, tensors: dict[str, np.ndarray], *, n_files: int = 1) -> Path:
    """A folder with these settings and tensors; uint16 is what bfloat16 is stored as."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    for i in range(n_files):
        mine = {name: np.ascontiguousarray(each) for name, each in [*tensors.items()][i::n_files]}
        specs = {
            name: TensorSpec(dtype=_KINDS[each.dtype.kind], shape=each.shape, data_ptr=each.ctypes.data, data_len=each.nbytes)
            for name, each in mine.items()
        }
        serialize_file(specs, path / f"model-{i + 1:05}-of-{n_files:05}.safetensors")
    return path


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves (uint16) of float32."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _draw(seed: int):
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        scale = 1.0 if len(shape) == 1 else 1.5 / math.sqrt(shape[-1])
        return np.float32(scale * rng.standard_normal(shape) + (len(shape) == 1))

    return draw


def _layer(draw, at: str, n_in: int, *, has_head_norms: bool, has_biases: bool = False) -> dict[str, np.ndarray]:
    shapes = {"q_proj": (H * D, n_in), "k_proj": (G * D, n_in), "v_proj": (G * D, n_in), "o_proj": (E, H * D)}
    made = {f"{at}self_attn.{name}.weight": draw(*shape) for name, shape in shapes.items()}
    if has_biases:
        made |= {f"{at}self_attn.{name}.bias": draw(shape[0]) - 1 for name, shape in shapes.items()}
    if has_head_norms:
        made |= {f"{at}self_attn.{name}_norm.weight": draw(D) for name in "qk"}
    made |= {f"{at}{name}.weight": draw(E) for name in ("input_layernorm", "post_attention_layernorm")}
    of_ff = {"gate_proj": (F, E), "up_proj": (F, E), "down_proj": (E, F)}
    return made | {f"{at}mlp.{name}.weight": draw(*shape) for name, shape in of_ff.items()}


def eagle_tensors(config: dict, n_features: int, n_seen: int, *, first: str = "layers.0.", seed: int = 1) -> dict:
    """The weights of an EAGLE-3 head, but for those that the target may have."""
    draw, flat = _draw(seed), {**config, **config.get("transformer_layer_config", {})}
    has_head_norms = flat.get("model_type") == "qwen3"
    joins_all = "Qwen3Eagle3Model" in config["architectures"]
    made = {"fc.weight": draw(E, n_features * n_seen), "norm.weight": draw(E)}
    for i in range(flat["num_hidden_layers"]):
        at, joins = (first if i == 0 else f"layers.{i}."), i == 0 or joins_all
        made |= _layer(draw, at, E * (1 + joins), has_head_norms=has_head_norms, has_biases=bool(flat.get("attention_bias")))
        made |= {f"{at}hidden_norm.weight": draw(E)} if joins else {}
    if set(MASKS) & flat.keys():
        made["mask_hidden"] = draw(1, 1, n_features * n_seen)
    if flat.get("norm_before_fc"):
        made["input_norm.weight"] = draw(n_features * n_seen)
    if flat.get("fc_norm"):
        made |= {f"fc_norm.{i}.weight": draw(n_seen) for i in range(n_features)}
    return made


def dflash_tensors(config: dict, n_features: int, n_vocab: int, *, seed: int = 1) -> dict:
    """The weights of a DFlash, DFlash2 or DSpark head, but for those that the target has."""
    draw = _draw(seed)
    flat = {**config, **config.get("transformer_layer_config", {}), **config.get("dflash_config", {})}
    made = {"fc.weight": draw(E, n_features * E), "hidden_norm.weight": draw(E), "norm.weight": draw(E)}
    for i in range(flat["num_hidden_layers"]):
        made |= _layer(draw, f"layers.{i}.", E, has_head_norms=True)
        if flat.get("attention_sink_bias"):
            made[f"layers.{i}.self_attn.attention_sink_bias"] = draw(H)
        if taps := flat.get("conv_kernel_size"):
            n_out = 2 * taps * (E // flat["conv_group_size"])
            for each in ("attention_conv", "mlp_conv"):
                made[f"layers.{i}.{each}.base_kernel"] = draw(2, taps, E)
                made[f"layers.{i}.{each}.kernel_projection.weight"] = draw(n_out, E)
    if rank := flat.get("selector_rank"):
        made |= {f"candidate_selector.{name}_codebook": draw(n_vocab, rank) for name in ("predecessor", "successor")}
        made["candidate_selector.hidden_projection.weight"] = draw(rank, E)
    if rank := flat.get("markov_rank"):
        made |= {"markov_head.markov_w1.weight": draw(n_vocab, rank), "markov_head.markov_w2.weight": draw(n_vocab, rank)}
        for kind, gate, n_in, n_out in (("gated", "gate_proj", E + rank, rank), ("rnn", "joint_proj", E + 2 * rank, 3 * rank)):
            if flat.get("markov_head_type") == kind:
                made |= {f"markov_head.{gate}.weight": draw(n_out, n_in), f"markov_head.{gate}.bias": draw(n_out) - 1}
        made |= {"confidence_head.proj.weight": draw(1, E + rank), "confidence_head.proj.bias": draw(1)}
    if n_state := flat.get("gru_hidden_dim"):
        made |= {"prefix_gru.weight_ih_l0": draw(3 * n_state, E), "prefix_gru.weight_hh_l0": draw(3 * n_state, n_state)}
        made["embed_proj.0.weight"] = draw(flat["emb_dim"], E + n_state)
        made["embed_proj.2.weight"] = draw(n_vocab, flat["emb_dim"])
    return made


_ERNIE = {  # names of what Qwen and EXAONE have beside the layer
    "fc": "mtp_linear_proj.0",
    "pre_fc_norm_embedding": "mtp_emb_norm.0",
    "pre_fc_norm_hidden": "mtp_hidden_norm.0",
    "layers.0.": "mtp_block.0.",
}


def mtp_tensors(config: dict, *, seed: int = 1) -> dict:
    """The weights of a layer of ERNIE's or EXAONE's that predicts further tokens, but for those that the model has."""
    draw, e, f, d = _draw(seed), *(config[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    q, kv = (d * config[name] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"fc": (e, 2 * e), "norm": (e,), "pre_fc_norm_embedding": (e,), "pre_fc_norm_hidden": (e,)}
    of_layer = {f"self_attn.{each}_proj": (n, e) for each, n in (("q", q), ("k", kv), ("v", kv))}
    of_layer |= {"self_attn.o_proj": (e, q), "mlp.gate_proj": (f, e), "mlp.up_proj": (f, e), "mlp.down_proj": (e, f)}
    is_ernie, is_post = config["model_type"] == "ernie4_5_moe", "exaone4" in config["model_type"]
    of_layer |= dict.fromkeys((f"{'post_feedforward' if is_post else 'input'}_layernorm", "post_attention_layernorm"), (e,))
    if is_ernie:
        del shapes["norm"]
    else:
        of_layer |= {"self_attn.q_norm": (d,), "self_attn.k_norm": (d,)}
    shapes |= {f"layers.0.{name}": shape for name, shape in of_layer.items()}
    return {f"{mtp_name(config, name)}.weight": draw(*shape) for name, shape in shapes.items()}


def mtp_name(config: dict, name: str) -> str:
    """How a publisher names what EXAONE names `mtp.` and this."""
    if config["model_type"] != "ernie4_5_moe":
        return f"mtp.{name}"
    stem = next((each for each in _ERNIE if name.startswith(each)), name)
    return f"model.{_ERNIE.get(stem, stem)}{name.removeprefix(stem)}"


class _Model:
    def __init__(self, config: dict, tensors: dict) -> None:
        self.config = {**config, **config.get("transformer_layer_config", {}), **config.get("dflash_config", {})}
        self.tensors = {name: np.float64(values) for name, values in tensors.items()}
        self.eps = self.config["rms_norm_eps"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * self.tensors[f"{name}.weight"]

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)

    def rope(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """(n, heads, D) turned by halves, as `rotate_half` of transformers does."""
        n = x.shape[-1]
        frequencies = self.config["rope_theta"] ** (-np.arange(0, n, 2) / n)
        scaling, magnitude = self.config.get("rope_scaling") or {}, 1.0
        if scaling.get("rope_type") == "llama3":
            frequencies = _llama3(frequencies, scaling)
        elif "yarn" in scaling.values():
            frequencies, magnitude = _yarn(frequencies, self.config["rope_theta"], scaling)
        angles = positions[:, None, None] * np.concatenate([frequencies, frequencies])
        turned = np.concatenate([-x[..., n // 2 :], x[..., : n // 2]], -1)
        are_neighbours = self.config.get("rope_is_neox_style") is False
        if are_neighbours or self.config.get("model_type") in ("llama4_text", "ernie4_5_moe"):  # complex numbers
            pairs = x.reshape(*x.shape[:-1], n // 2, 2) @ [1, 1j] * np.exp(1j * positions[:, None, None] * frequencies)
            return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)
        return magnitude * (x * np.cos(angles) + turned * np.sin(angles))

    def part(self, at: str, which: str, x: np.ndarray, positions: np.ndarray | None = None) -> np.ndarray:
        y = self.linear(f"{at}self_attn.{which}_proj", x).reshape(len(x), -1, self.config.get("head_dim", D))
        if f"{at}self_attn.{which}_norm.weight" in self.tensors:
            y = self.norm(f"{at}self_attn.{which}_norm", y)
        return y if positions is None else self.rope(y, positions)

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, is_seen: np.ndarray, sinks: str = "") -> np.ndarray:
        k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]) + np.where(is_seen, 0.0, -np.inf)
        if sinks in self.tensors:  # of each head, as scores of a key without a value
            own = np.broadcast_to(self.tensors[sinks][:, None, None], (*scores.shape[:2], 1))
            scores, v = np.concatenate([scores, own], -1), np.concatenate([v, 0 * v[:1]])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(len(q), -1)

    def mlp(self, at: str, x: np.ndarray) -> np.ndarray:
        gate = self.linear(f"{at}mlp.gate_proj", x)
        return self.linear(f"{at}mlp.down_proj", gate / (1 + np.exp(-gate)) * self.linear(f"{at}mlp.up_proj", x))


def _llama3(frequencies: np.ndarray, scaling: dict) -> np.ndarray:
    lengths, n_ctx = 2 * math.pi / frequencies, scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (n_ctx / lengths - low) / (high - low)
    between = (1 - smooth) * frequencies / scaling["factor"] + smooth * frequencies
    slow = np.where(lengths > n_ctx / low, frequencies / scaling["factor"], between)
    return np.where(lengths < n_ctx / high, frequencies, slow)


def _yarn(frequencies: np.ndarray, base: float, scaling: dict) -> tuple[np.ndarray, float]:
    """Frequencies and the factor of cosines and sines; `_compute_yarn_parameters` of transformers."""
    n, factor = 2 * len(frequencies), scaling["factor"]
    n_ctx, is_whole = scaling["original_max_position_embeddings"], scaling.get("truncate", True)
    ends = [
        n * math.log(n_ctx / (scaling.get(key, default) * 2 * math.pi)) / (2 * math.log(base))
        for key, default in (("beta_fast", 32), ("beta_slow", 1))
    ]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if is_whole else ends
    low, high = max(low, 0), min(high, n - 1)
    scaled = [
        each * (1 - ramp) + each / factor * ramp
        for each, ramp in ((each, min(max((i - low) / (high - low), 0), 1)) for i, each in enumerate(frequencies))
    ]
    by, by_all = (0.1 * scaling[key] * math.log(factor) + 1 if key in scaling else None for key in ("mscale", "mscale_all_dim"))
    magnitude = scaling.get("attention_factor") or (by / by_all if by and by_all else 0.1 * math.log(factor) + 1)
    return np.array(scaled), magnitude


class Eagle(_Model):
    """EAGLE-3 and P-EAGLE: SpecForge's `LlamaForCausalLMEagle3`, `Eagle3DraftModel` and `PEagleDraftModel` of speculators,
    NeMo's `LlamaEagle3DraftModel`, `Qwen3Eagle3Model` of DeepSpec."""

    first = "layers.0."

    def encode(self, features: np.ndarray) -> np.ndarray:
        """(T, n, E_t) → (T, E)."""
        n = features.shape[1]
        if self.config.get("fc_norm"):
            features = np.stack([self.norm(f"fc_norm.{i}", features[:, i]) for i in range(n)], 1)
        x = features.reshape(len(features), -1)
        return self.linear("fc", self.norm("input_norm", x) if self.config.get("norm_before_fc") else x)

    def forward(self, tokens: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (T, V_d) of a whole text, and what is fed back (T, E)."""
        ahead = np.arange(len(tokens))[:, None] - np.arange(len(tokens))
        return self._forward(tokens, hidden, np.arange(len(tokens)), (ahead >= 0) & (ahead < self.window))

    def parallel(self, text: np.ndarray, features: np.ndarray, n: int) -> np.ndarray:
        """P-EAGLE: logits (n, V_d) of the tokens after a text (T + 1,), of whose first T there are features (T, n, E_t).

        An anchor is a token of the text, the last one here; a depth above 0 a mask. As speculators' `create_peagle_mask_mod`,
        but that its window cuts no masks off.
        """
        mask = next(self.config[key] for key in MASKS if key in self.config)
        masked = np.concatenate([features, np.repeat(self.tensors["mask_hidden"].reshape(1, *features.shape[1:]), n - 1, 0)])
        last = len(features) - 1
        anchor, depth = np.r_[: last + 1, [last] * (n - 1)], np.r_[[0] * (last + 1), 1:n]
        of_text = (depth == 0) & (anchor[:, None] >= anchor) & (anchor > (anchor + depth)[:, None] - self.window)
        of_draft = (anchor[:, None] == anchor) & (depth[:, None] >= depth)
        tokens = np.concatenate([text[1:], np.full(n - 1, mask)])
        return self._forward(tokens, self.encode(masked), anchor + depth, of_text | of_draft)[0][-n:]

    @property
    def window(self) -> int:
        """How many positions a token sees."""
        return self.config.get("sliding_window") or 1 << 30

    def _forward(
        self, tokens: np.ndarray, h: np.ndarray, at_positions: np.ndarray, is_seen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        embedded = self.tensors["embed_tokens.weight"][tokens]
        for i in range(self.config["num_hidden_layers"]):
            at = self.first if i == 0 else f"layers.{i}."
            residual, x = h, self.norm(f"{at}input_layernorm", h)
            if f"{at}hidden_norm.weight" in self.tensors:
                normed = self.norm(f"{at}hidden_norm", h)
                residual = normed if self.config.get("norm_before_residual") else h
                x = np.concatenate([self.norm(f"{at}input_layernorm", embedded), normed], -1)
            q, k = (self.part(at, each, x, at_positions) for each in "qk")
            mixed = self.attend(q, k, self.part(at, "v", x), is_seen)
            h = residual + self.linear(f"{at}self_attn.o_proj", mixed)
            h = h + self.mlp(at, self.norm(f"{at}post_attention_layernorm", h))
        normed = self.norm("norm", h)
        feeds_back = "speculators_model_type" in self.config or "LlamaEagle3DraftModel" in self.config["architectures"]
        given_on = normed if feeds_back and self.config.get("norm_output") else h
        return self.linear("lm_head", normed), given_on


class DFlash(_Model):
    """DFlash of z-lab, speculators' and JetSpec's, DFlash2, Domino, and the DSpark of SpecForge, speculators and DeepSpec."""

    def draft(self, features: np.ndarray, last: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Logits (n, V) of a block after a text of hidden states (T, n_features, E), and its last states (n, E)."""
        given = self.norm("hidden_norm", self.linear("fc", features.reshape(len(features), -1)))
        n_text = len(given)
        before, inside = np.arange(n_text), n_text + np.arange(n)
        tokens = np.full(n, self.config["mask_token_id"])
        tokens[0] = last
        h, every = self.tensors["embed_tokens.weight"][tokens], np.concatenate([before, inside])
        usual = "sliding_attention" if self.config.get("use_swa") else "full_attention"
        kinds = self.config.get("layer_types") or [usual] * self.config["num_hidden_layers"]
        for i, kind in enumerate(kinds):
            at = f"layers.{i}."
            is_seen = np.ones((n, n_text + n), bool)
            is_local = kind == "sliding_attention"
            if is_local:
                is_seen &= inside[:, None] - every < (self.config.get("sliding_window") or self.config["swa_window_size"])
            is_of_speculators = "speculators_model_type" in self.config
            if self.config.get("causal", self.config.get("causal_head")) or (
                is_of_speculators and is_local and not self.config.get("sliding_window_non_causal")
            ):
                is_seen &= inside[:, None] >= every
            x, finish = self.convolved(f"{at}attention_conv", self.norm(f"{at}input_layernorm", h))
            k = np.concatenate([self.part(at, "k", given, before), self.part(at, "k", x, inside)])
            v = np.concatenate([self.part(at, "v", given), self.part(at, "v", x)])
            mixed = self.attend(self.part(at, "q", x, inside), k, v, is_seen, f"{at}self_attn.attention_sink_bias")
            h = h + finish(self.linear(f"{at}self_attn.o_proj", mixed))
            x, finish = self.convolved(f"{at}mlp_conv", self.norm(f"{at}post_attention_layernorm", h))
            h = h + finish(self.mlp(at, x))
        h = self.norm("norm", h)
        return self.linear("lm_head", h), h

    def convolved(self, at: str, x: np.ndarray):
        """DFlash2's convolution of a block's input, and the one of its output."""
        if f"{at}.base_kernel" not in self.tensors:
            return x, lambda y: y
        base, taps = self.tensors[f"{at}.base_kernel"], self.config["conv_kernel_size"]
        moving = self.linear(f"{at}.kernel_projection", x).reshape(len(x), 2, taps, -1)
        moving = np.repeat(moving, self.config["conv_group_size"], axis=-1)

        def convolve(y: np.ndarray, side: int) -> np.ndarray:
            earlier = [np.concatenate([np.zeros((tap, E)), y[: len(y) - tap]]) for tap in range(taps)]
            return sum((base[side, tap] + moving[:, side, tap]) * earlier[tap] for tap in range(taps))

        return convolve(x, 0), lambda y: convolve(y, 1)

    def chosen(self, features: np.ndarray, last: int, n: int) -> tuple[list[int], np.ndarray]:
        """The tokens (n,) of a DSpark block, the likeliest of each place, and their logits; DeepSpec: `sample_block_tokens`."""
        if "prefix_gru.weight_hh_l0" in self.tensors:
            return self._by_state(features, last, n)
        logits, states = self.draft(features, last, n)
        tokens, state = [last], np.zeros(self.config["markov_rank"])
        for place in range(n):
            latent = previous = self.tensors["markov_head.markov_w1.weight"][tokens[-1]]
            if (kind := self.config.get("markov_head_type")) == "gated":
                gate = self.linear("markov_head.gate_proj", np.concatenate([states[place], previous]))
                latent = previous / (1 + np.exp(-gate))
            elif kind == "rnn":
                z = self.linear("markov_head.joint_proj", np.concatenate([state, previous, states[place]]))
                gate, candidate, made = np.split(z, 3)
                gate = 1 / (1 + np.exp(-gate))
                state, latent = gate * state + (1 - gate) * np.tanh(candidate), np.tanh(made)
            logits[place] += self.linear("markov_head.markov_w2", latent)
            tokens.append(int(logits[place].argmax()))
        return tokens[1:], logits

    def _by_state(self, features: np.ndarray, last: int, n: int) -> tuple[list[int], np.ndarray]:
        """The same of a Domino block; jianuo-huang/Domino: `dflash_generate`, and `GRU` of PyTorch."""
        is_shifted = bool(self.config.get("shift_label"))
        logits, hidden = (each[not is_shifted :] for each in self.draft(features, last, n + (not is_shifted)))
        tokens, state = [last], np.zeros(self.config["gru_hidden_dim"])
        for place in range(n):
            of_token = self.tensors["prefix_gru.weight_ih_l0"] @ self.tensors["embed_tokens.weight"][tokens[-1]]
            (r, z, x), (r_h, z_h, x_h) = (
                np.split(each, 3) for each in (of_token, self.tensors["prefix_gru.weight_hh_l0"] @ state)
            )
            reset, kept = 1 / (1 + np.exp(-r - r_h)), 1 / (1 + np.exp(-z - z_h))
            state = (1 - kept) * np.tanh(x + reset * x_h) + kept * state
            if place >= self.config.get("pure_draft_prefix_len", 0):
                made = self.linear("embed_proj.0", np.concatenate([hidden[place], state]))
                logits[place] += self.linear("embed_proj.2", made / (1 + np.exp(-made)))
            tokens.append(int(logits[place].argmax()))
        return tokens[1:], logits

    def transitions(self, token: int) -> np.ndarray:
        """DSpark's logits (V,) by the token before."""
        return self.linear("markov_head.markov_w2", self.tensors["markov_head.markov_w1.weight"][token])

    def confidence(self, hidden: np.ndarray, token: int) -> float:
        """How sure DSpark is of a place, before the sigmoid."""
        x = np.concatenate([hidden, self.tensors["markov_head.markov_w1.weight"][token]])
        return float(self.linear("confidence_head.proj", x)[0])

    def score(self, hidden: np.ndarray, before: int, token: int) -> float:
        """What DFlash2's selector adds to the logit of a token after another."""
        rows = (self.tensors[f"candidate_selector.{each}_codebook"] for each in ("predecessor", "successor"))
        predecessor, successor = next(rows)[before], next(rows)[token]
        return float((predecessor * successor) @ self.linear("candidate_selector.hidden_projection", hidden))


class Mtp(_Model):
    """FastDeploy's `Ernie4_5_MTPModel`; vLLM's `ExaoneMoeMultiTokenPredictor` and `Exaone4_5MultiTokenPredictor`.

    Of the model it has `embed_tokens`, `lm_head` and, ERNIE's, `model.norm`.
    """

    def forward(self, text: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (n, V) after each token (n,) with the model's normed output (n, E) before it, and what is given on."""
        kind, at = self.config["model_type"], mtp_name(self.config, "layers.0.")
        fc, of_token, of_hidden, last = (
            mtp_name(self.config, each) for each in ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        embedded = self.tensors["embed_tokens.weight"][text]
        x = self.linear(fc, np.concatenate([self.norm(of_token, embedded), self.norm(of_hidden, hidden)], -1))
        is_post, places = "exaone4" in kind, np.arange(len(text))
        turned = None if kind == "exaone_moe" else places  # which sees everything, and has no positions
        is_seen = places[:, None] >= places
        if is_post:
            is_seen &= places[:, None] - places < self.config["sliding_window"]
        y = x if is_post else self.norm(f"{at}input_layernorm", x)
        q, k, v = (self.part(at, each, y, None if each == "v" else turned) for each in "qkv")
        y = self.linear(f"{at}self_attn.o_proj", self.attend(q, k, v, is_seen))
        x = x + (self.norm(f"{at}post_attention_layernorm", y) if is_post else y)
        y = self.mlp(at, x if is_post else self.norm(f"{at}post_attention_layernorm", x))
        x = self.norm(last, x + (self.norm(f"{at}post_feedforward_layernorm", y) if is_post else y))
        return x @ self.tensors["lm_head.weight"].T, x
