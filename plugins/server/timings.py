"""What a finished request did, as clients of llama.cpp's server read it, with what speculation did beside."""

from __future__ import annotations

from typing import Any

from augury.types import Summary

__all__ = ["timings"]


def timings(summary: Summary) -> dict[str, Any]:
    """llama.cpp's `timings`, and augury's figures by drafter.

    `predicted_ms` begins with the first token, so it is the time of all tokens but that; the rates are as well.
    `plain_per_second` is what the planner expects of plain decoding here, or null.
    """
    times = summary.timings
    prompt_ms, predicted_ms = times.prompt_s * 1e3, times.predict_s * 1e3
    return {
        "cache_n": summary.n_reused,
        "prompt_n": times.n_prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / times.n_prompt if times.n_prompt else 0.0,
        "prompt_per_second": times.prompt_per_second,
        "predicted_n": summary.n_emitted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / times.n_predicted if times.n_predicted else 0.0,
        "predicted_per_second": times.predicted_per_second,
        "plain_per_second": times.plain_per_second,
        "draft_n": summary.n_drafted,
        "draft_n_accepted": summary.n_accepted,
        "rounds": summary.n_rounds,
        "draft_lengths": list(summary.draft_lengths),
        "drafters": {
            name: {
                "drafted": each.drafted,
                "accepted": each.accepted,
                "offered_by_position": list(each.offered_by_position),
                "accepted_by_position": list(each.accepted_by_position),
                "draft_ms": each.draft_s * 1e3,
                "failed": each.failed,
            }
            for name, each in summary.drafters.items()
        },
        "effective": summary.effective,
    }
