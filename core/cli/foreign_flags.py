"""Flags of llama.cpp and ik_llama.cpp that augury does not have: which are ignored, and what to use instead of the others.

Command lines get pasted, so all flags of `llama-cli`, `llama-completion`, `llama-server`, `llama-speculative-simple` and of
ik_llama.cpp's programs are known. Those that augury has under another name are declared with its own flags; the rest is below.
A flag is ignored where leaving it out changes no output but, at most, how fast it comes; the others are refused.

Source of the names: llama.cpp b11434, `common/arg.cpp`; ik_llama.cpp 8337e4c, `common/common.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import evolve, frozen

__all__ = ["FOREIGN_DRAFTERS", "FOREIGN_FLAGS", "FOREIGN_FLAGS_IN_CHAT", "ForeignFlag", "ignored"]

FOREIGN_DRAFTERS = ("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark", "eagle3", "mtp", "dflash", "dspark")
"""Values of `--spec-type` in llama.cpp and ik_llama.cpp for which augury has nothing alike."""

_SWITCHED = ("on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled", "none")


@frozen
class ForeignFlag:
    """A flag of another program, and what becomes of it."""

    name: str
    kind: Literal["ignored", "refused", "same as"]
    text: str  # why it is ignored, what to use instead, or augury's flag with {} for its value
    n_values: int = 0
    is_value_optional: bool = False  # it is one of `on`, `off` and the like, or missing
    off: str | None = None  # a refused flag's value that switches it off: then it is ignored

    def takes(self, word: str) -> bool:
        """Whether a word is this flag's optional value."""
        return self.is_value_optional and word.lower() in _SWITCHED

    def given(self, values: Sequence[str]) -> ForeignFlag:
        """What becomes of the flag with these values."""
        return evolve(self, kind="ignored", text="that is off anyway") if self._is_off(values) else self

    def _is_off(self, values: Sequence[str]) -> bool:
        if self.off is None or len(values) != 1:
            return False
        try:
            return float(values[0]) == float(self.off)
        except ValueError:
            return values[0] == self.off


def ignored(names: Sequence[str], why: str, n_values: int) -> dict[str, ForeignFlag]:
    """Flags that change nothing, by name."""
    return {name: ForeignFlag(name, "ignored", why, n_values) for name in names}


# In the lists below a flag is followed by N for every value that it takes, or by [N] where it may be left out. N=0 says which
# value switches it off.

_IGNORED = {
    "augury computes on the CPU": """
        -ngl N --gpu-layers N --n-gpu-layers N -sm N --split-mode N -ts N --tensor-split N -mg N --main-gpu N -dev N --device N
        -fit [N] --fit [N] -fitt N --fit-target N -fitc N --fit-ctx N --op-offload --no-op-offload -kvo --kv-offload
        -nkvo --no-kv-offload -ot N --override-tensor N -cmoe --cpu-moe -ncmoe N --n-cpu-moe N -ncffn N --n-cpu-ffn N
        --no-host -bs --backend-sampling --spec-draft-backend-sampling --no-spec-draft-backend-sampling
        --mmproj-offload --no-mmproj-offload --spec-draft-ngl N -ngld N --gpu-layers-draft N --n-gpu-layers-draft N
        --spec-draft-device N -devd N --device-draft N --spec-draft-override-tensor N -otd N --override-tensor-draft N
        --spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe N --spec-draft-ncmoe N -ncmoed N --n-cpu-moe-draft N
        --fit-margin N -gfm N --gpu-fit-margin N -cuda N --cuda-params N --max-gpu N -smgs --split-mode-graph-scheduling
        -smf16 --split-mode-f16 -smf32 --split-mode-f32 -grt N --graph-reduce-type N -gap N --graph-attn-precision N
        -sas --scheduler-async -op N --offload-policy N -no-ooae --no-offload-only-active-experts -ooae
        --offload-only-active-experts""",
    "augury chooses its kernels itself": """
        -fa [N] --flash-attn [N] -no-fa --no-flash-attn --swa-full -mla N --mla-use N -dsa --dsa -fidx --fused-indexer-topk
        --swa-compress -amb N --attention-max-batch N -fmoe --fused-moe -no-fmoe --no-fused-moe -ger --grouped-expert-routing
        -no-fug --no-fused-up-gate -no-mmad --no-fused-mul-multiadd -rcache --rope-cache -gr --graph-reuse -no-gr
        --no-graph-reuse -fdn N --fused-delta-net N -wgt N --worst-graph-tokens N --repack -nr --no-repack -rtr
        --run-time-repack -mqkv --merge-qkv -muge --merge-up-gate-experts""",
    "augury divides prompts and joins requests into passes itself": """
        -b N --batch-size N -ub N --ubatch-size N -cb --cont-batching -nocb --no-cont-batching -kvu --kv-unified -no-kvu
        --no-kv-unified -dt N --defrag-thold N -mea N --max-extra-alloc N""",
    "all passes use the threads of -t": "-tb N --threads-batch N -tm N --threads-mtmd N",
    "a draft model's passes all use the threads of -td": "--spec-draft-threads-batch N -tbd N --threads-batch-draft N",
    "--backend numba-cpu:affinity=cores keeps each thread on a core of its own": """
        -C N --cpu-mask N -Cr N --cpu-range N --cpu-strict N --prio N --poll N -Cb N --cpu-mask-batch N -Crb N
        --cpu-range-batch N --cpu-strict-batch N --prio-batch N --poll-batch N --numa N
        --spec-draft-cpu-mask N -Cd N --cpu-mask-draft N --spec-draft-cpu-range N -Crd N --cpu-range-draft N
        --spec-draft-cpu-strict N --cpu-strict-draft N --spec-draft-prio N --prio-draft N --spec-draft-poll N --poll-draft N
        --spec-draft-cpu-mask-batch N -Cbd N --cpu-mask-batch-draft N --spec-draft-cpu-range-batch N -Crbd N
        --cpu-range-batch-draft N --spec-draft-cpu-strict-batch N --cpu-strict-batch-draft N --spec-draft-prio-batch N
        --prio-batch-draft N --spec-draft-poll-batch N --poll-batch-draft N""",
    "augury maps, packs and checks weights as it needs them": """
        --mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io -lm N --load-mode N -lzm N --lazy-mode N
        -thp --transparent-huge-pages --check-tensors -vq --validate-quants --defer-experts --prefetch-experts
        --prefetch-experts-threads N""",
    "kernels are compiled before the first request": "--warmup --no-warmup -wb --warmup-batch",
    "a full context ends the text": "--keep N --context-shift [N] --no-context-shift",
    "every slot keeps its last text and reuses its beginning": """
        --cache-prompt --cache-reuse N -cram N --cache-ram N -crs N --cache-ram-similarity N -cram-n-min N --cache-ram-n-min N
        --cache-idle-slots --no-cache-idle-slots -sps N --slot-prompt-similarity N -ctxcp N --ctx-checkpoints N
        --swa-checkpoints N -cms N --checkpoint-min-step N -ctx-ckpt N -ctx-ckpt-i N --ctx-checkpoints-interval N -ctx-ckpt-t N
        --ctx-checkpoints-tolerance N -ctx-ckpt-e N --ctx-checkpoints-eviction N --prompt-cache N --prompt-cache-all
        --prompt-cache-ro --spec-ckpt-mode N --recurrent-ckpt-mode N""",
    "-v and -vv say more, on standard error": """
        -lv N --verbosity N --log-verbosity N --log-disable --log-colors [N] --log-prefix --no-log-prefix --log-timestamps
        --no-log-timestamps --log-jsonl --no-log-jsonl --log-format N --perf --no-perf --show-timings --no-show-timings
        --verbose-prompt -ptc N --print-token-count N -dkvc --dump-kv-cache --minilog""",
    "--stats colours what was drafted": "-co [N] --color [N]",
    "only what is generated is printed": "--no-display-prompt",
    "prompts are taken as they are, without a conversation": "-no-cnv --no-conversation",
    "prompts are taken as they are, backslashes too": "--no-escape",
    "the model's own chat template is used, which is Jinja": "--jinja --no-jinja --peg",
    "the text is printed as the model writes it": "--reasoning-format N --skip-chat-parsing --no-skip-chat-parsing",
    "a last message of the assistant is continued": "--prefill-assistant",
    "augury reads no images": "--mmproj-auto --no-mmproj --no-mmproj-auto",
    "drafts branch by --spec-draft-model-tree": "--spec-draft-p-split N --draft-p-split N -ps N --p-split N",
    "llama.cpp does not use it either": """
        --spec-ngram-simple-min-hits N --spec-ngram-map-k-min-hits N --spec-ngram-check-rate N""",
    "several lines are one message": "-mli --multiline-input --simple-io",
}

_REFUSED = {
    "augury chat holds conversations": """
        -cnv --conversation -i --interactive -if --interactive-first --in-prefix-bos --in-prefix N --in-suffix N""",
    "augury run --chat answers once": "-st --single-turn",
    "augury run takes prompts and several sequences at once": "-p N --prompt N -f N --file N -np N --parallel N",
    'give system messages in a file of JSON lines with -f: {"messages": [{"role": "system", "content": ...}, ...]}': """
        -sys N --system-prompt N -sysf N --system-prompt-file N -spf N""",
    "augury processes no escapes; in most shells $'a\\nb' is a text with a line break": "-e --escape",
    "give texts in UTF-8 with -f": "-bf N --binary-file N --in-file N --context-file N",
    "augury run --json --echo tells the prompt": "--display-prompt",
    "redirect standard output with > FILE": "-o N --output N --output-file N",
    "redirect standard error with 2> FILE": "--log-file N -ld N --logdir N --log-prompts-dir N",
    "special tokens are never printed; run --json lists all tokens": "-sp --special",
    "augury knows no such sampler; see augury run --help": """
        --top-nsigma N=-1 --top-n-sigma N=-1 --xtc-probability N=0 --xtc-threshold N --dry-multiplier N=0 --dry-base N
        --dry-allowed-length N --dry-penalty-last-n N --dry-sequence-breaker N --adaptive-target N=-1 --adaptive-decay N
        --adaptive-updt-w-cur --dynatemp-range N=0 --dynatemp-exp N=1 --mirostat N=0 --mirostat-lr N --mirostat-ent N --tfs N=1
        --penalize-nl --cfg-negative-prompt N --cfg-negative-prompt-file N --cfg-scale N=1 --banned-string-file N --banned-n N
        --allowlist-unicode-rule N --allowlist-pieces N --allowlist-keyword N --allowlist-keyword-delay N
        --expiring-logit-bias-file N""",
    "a draft model drafts greedily": "--spec-draft-sampling N=greedy --spec-replace N N",
    "augury cannot constrain what is generated": """
        --grammar N --grammar-file N -j N --json-schema N -jf N --json-schema-file N""",
    "the model file alone says how it is computed": """
        --rope-scaling N --rope-scale N=1 --rope-freq-base N=0 --rope-freq-scale N=1 --yarn-orig-ctx N=0 --yarn-ext-factor N=-1
        --yarn-attn-factor N=-1 --yarn-beta-slow N=-1 --yarn-beta-fast N=-1 -gan N=1 --grp-attn-n N=1 -gaw N --grp-attn-w N
        --override-kv N -okv N --attention N=causal -dsatk N --dsa-top-k N -ser N --smart-expert-reduction N""",
    "give the KV cache's types with -ctk and -ctv": """
        -khad --k-cache-hadamard -vhad --v-cache-hadamard -ictk N --indexer-cache-type-k N -ctk-first N --cache-type-k-first N
        -ctk-last N --cache-type-k-last N -ctv-first N --cache-type-v-first N -ctv-last N --cache-type-v-last N""",
    "augury applies no adapters": """
        --lora N --lora-scaled N --lora-init-without-apply --control-vector N --control-vector-scaled N
        --control-vector-layer-range N N""",
    "augury reads texts alone": """
        -mm N --mmproj N -mmu N --mmproj-url N -mmdev N --mmproj-device N --image N --audio N --video N --image-min-tokens N
        --image-max-tokens N --mtmd-batch-max-tokens N --mtmd-kq-type N --video-fps N --video-timestamp-interval N
        --video-ffmpeg-dir N""",
    "augury run and augury chat take it, for messages": "--chat-template-kwargs N",
    "the model's own chat template is used, with the messages, tools and --chat-template-kwargs": """
        --chat-template N --chat-template-file N -rea N=auto --reasoning N=auto
        --reasoning-effort N=default --reasoning-budget N=-1 --reasoning-budget-message N --reasoning-preserve
        --no-reasoning-preserve --reasoning-tokens N""",
    "a last message of the assistant is always continued": "--no-prefill-assistant",
    "name the model with -m: a path, hf:OWNER/REPOSITORY:QUANT or a name that augury pull knows": """
        -mu N --model-url N -dr N --docker-repo N -hff N --hf-file N --embd-gemma-default --fim-qwen-1.5b-default
        --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default
        --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default""",
    "set the environment variable HF_TOKEN": "-hft N --hf-token N",
    "set the environment variable HF_HUB_OFFLINE=1": "--offline",
    "augury plugins lists what can compute": "--list-devices --rpc N",
    "augury pull gets models, and prints where they lie": "-cl --cache-list",
    "augury completion prints it for a shell": "--completion-bash",
    "augury --version tells it": "--version",
    "augury inspect shows a model file without loading it": "--dry-run",
    "augury tune finds the fastest options": "--spec-autotune",
    "augury has no multi-token prediction": """
        -mtp --multi-token-prediction -no-mtp --no-multi-token-prediction -mtprot N --mtp-requantize-output-tensor N""",
    "give drafters and their options with --spec-type, such as suffix:max_depth=24": """
        --spec-stage N --suffix-pattern-len N --suffix-corpus N""",
    "augury has no server; augury run and augury chat run a model, and augury.Engine does in Python": """
        -a N --alias N --tags N --host N --port N --reuse-port --path N --cors-origins N --cors-methods N --cors-headers N
        --cors-credentials --no-cors-credentials --api-prefix N --ui-config N --webui-config N --ui-config-file N
        --webui-config-file N --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy --tools N
        --tools-runtime N --mcp-servers-config N --mcp-servers-json N -ag --agent -no-ag --no-agent --ui --webui [N] --no-ui
        --no-webui --api-key N --api-key-file N --ssl-key-file N --ssl-cert-file N -to N --timeout N --sse-ping-interval N
        --threads-http N --metrics --props --slots --no-slots --slot-save-path N --media-path N --models-dir N
        --models-preset N --models-max N --models-autoload --no-models-autoload --sleep-idle-seconds N --server-base N
        --send-done --sql-save-file N --sqlite-zstd-ext-file N -ptcall --parallel-tool-calls --kv-unified-per-slot N""",
    "augury only generates texts": """
        --embedding --embeddings --embd-normalize N --embd-output-format N --embd-separator N --pooling N --rerank --reranking
        --spm-infill --infill --chunks N -ns N --sequences N --perplexity --all-logits --ppl-stride N --ppl-output-type N
        --no-ppl --save-all-logits N --kl-divergence-base N --kl-divergence --hellaswag --hellaswag-tasks N --winogrande
        --winogrande-tasks N --multiple-choice --multiple-choice-tasks N --chunk-size N --chunk-separator N --junk N --pos N
        -ofreq N --output-frequency N --save-frequency N --process-output --output-tensor-name N --chunk N --from-chunk N
        --output-draft N --draft-output N --draft-output-file N --positive-file N --negative-file N --pca-batch N --pca-iter N
        --method N --output-format N""",
    "augury bench times passes: --curve, -p and -n": """
        -nrep N --n-repetitions N --sweep-stride N --sweep-memory -pps -npp N -ntg N -npl N""",
}

_SAME_AS = {
    "--help": "--usage",
    "--model=hf:{}": "-hf N -hfr N --hf-repo N",
    "--model-draft=hf:{}": "--spec-draft-hf N -hfd N -hfrd N --hf-repo-draft N",
    "--spec-type=ngram-mod": "--spec-default",
    "--spec-type=self-spec": "--spec-self N=0",
}


_IGNORED_IN_CHAT = {
    "chat is a conversation": "-cnv --conversation -i --interactive -if --interactive-first",
}
_REFUSED_IN_CHAT = {
    "augury run continues prompts": "-no-cnv --no-conversation",
    'start from a --session FILE that holds {"messages": [{"role": "system", "content": ...}]}': """
        -sys N --system-prompt N -sysf N --system-prompt-file N -spf N""",
}


def _listed(kind: Literal["ignored", "refused", "same as"], groups: Mapping[str, str]) -> dict[str, ForeignFlag]:
    found = {}
    for text, flags in groups.items():
        name = ""
        for word in flags.split():
            if word.startswith("-"):
                name = word
                found[name] = ForeignFlag(name, kind, text)
            elif word == "[N]":
                found[name] = evolve(found[name], is_value_optional=True)
            else:
                found[name] = evolve(found[name], n_values=found[name].n_values + 1, off=word[2:] or None)
    return found


FOREIGN_FLAGS = _listed("ignored", _IGNORED) | _listed("refused", _REFUSED) | _listed("same as", _SAME_AS)
"""By name."""

FOREIGN_FLAGS_IN_CHAT = FOREIGN_FLAGS | _listed("ignored", _IGNORED_IN_CHAT) | _listed("refused", _REFUSED_IN_CHAT)
"""The same for `augury chat`, where a few mean something else."""
