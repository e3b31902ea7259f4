"""`/infill`: the text between a prefix and a suffix."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request

from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import STREAMED
from augury.plugins.server.fields import Fields
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.completion import CompletionFields, answer
from augury.plugins.server.llama_cpp.prompts import mixed_tokens
from augury.plugins.server.server import Server, Serving
from augury.text.tokenizer import Tokenizer

router = api_router()

_NEEDED = {"pre": "prefix", "suf": "suffix", "mid": "middle"}
_REPOSITORY = "myproject\n"  # llama.cpp's default names of it, and of the file that is written
_FILE = "filename\n"
_SHARE = 8  # of the context is left for an answer without a limit
_SNIPPET = "\n\n--- snippet ---\n\n"  # before each text of a model without a token for that


class Extra(Fields):
    """Another file, for context."""

    text: str
    filename: str = "tmp"
    time: Any = Field(None, description="when an editor collected it; without effect, as in llama.cpp")


class InfillRequest(CompletionFields):
    """A text with a gap."""

    input_prefix: str | list[int | str]
    input_suffix: str | list[int | str]
    input_extra: list[Extra] = Field(default_factory=list)
    prompt: str = ""


@router.post("/infill", responses=STREAMED)
async def infill(body: InfillRequest, http: Request, server: Serving) -> Any:
    """Fill a gap."""
    return await answer(body, [await infill_prompt(body, server)], http, server, is_list=body.n_cmpl > 1)


async def infill_prompt(body: InfillRequest, server: Server) -> list[int]:
    """The prompt for a gap, with room for the answer.

    Raises:
        RequestError: The model cannot fill gaps.
    """
    tokenizer, n_ctx = server.engine.tokenizer, server.engine.config["n_ctx"]
    limit = server.options.params.get("max_tokens") if body.n_predict is None else body.n_predict
    if tokenizer is None or (missing := [word for name, word in _NEEDED.items() if name not in tokenizer.fim]):
        lacks = "tokenizer" if tokenizer is None else f"token for the {', the '.join(missing)} of a gap"
        raise RequestError(501, f"infill is not supported by this model: it has no {lacks}; use /completion")
    n_answer = n_ctx // _SHARE if limit is None or limit < 0 else limit
    return await to_thread.run_sync(infill_tokens, body, tokenizer, n_ctx - n_answer)


def infill_tokens(body: InfillRequest, tokenizer: Tokenizer, n_ctx: int) -> list[int]:
    """The prompt: other files, the prefix with the middle's beginning, and the suffix.

    Tokens beyond n_ctx are left out: first the oldest of the other files, then the beginning of the prefix and
    the end of the suffix, of which a quarter is kept at most.

    Raises:
        UnsupportedError: A text holds half of a surrogate pair.
    """
    fim = tokenizer.fim

    def encode(text: Any, *, parse_special: bool = False) -> list[int]:
        return mixed_tokens(text, tokenizer, add_special=False, parse_special=parse_special)

    extra = [fim["rep"], *encode(_REPOSITORY)] if "rep" in fim else []
    for each in body.input_extra:
        before = [fim["sep"], *encode(f"{each.filename}\n")] if "sep" in fim else encode(_SNIPPET)
        extra += [*before, *encode(each.text)]
    extra += [fim["sep"], *encode(_FILE)] if "sep" in fim else []
    prefix, suffix, middle = encode(body.input_prefix), encode(body.input_suffix), encode(body.prompt, parse_special=True)
    bos = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
    n_left = max(n_ctx - len(bos) - 3 - len(middle), 0)
    suffix = suffix[: max(n_left // 4, n_left - len(prefix))]
    prefix = prefix[max(len(prefix) - (n_left - len(suffix)), 0) :]
    n_extra = n_left - len(suffix) - len(prefix)
    kept = extra[-n_extra:] if n_extra > 0 else []
    return [*kept, *bos, fim["pre"], *prefix, *middle, fim["suf"], *suffix, fim["mid"]]
