"""Stream a text from an app of one's own: uvicorn fastapi_stream:app --app-dir examples; augury serve has far more."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from augury import Engine


@asynccontextmanager
async def lifespan(app: FastAPI):
    with Engine.load(os.environ.get("MODEL", "smollm2"), slots=4) as app.state.engine:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/continue")
async def continue_text(request: Request, prompt: str, max_tokens: int = 64) -> StreamingResponse:
    async def pieces() -> AsyncIterator[str]:  # a client that leaves cancels the request
        async for piece in request.app.state.engine.astream(prompt, max_tokens=max_tokens, seed=1):
            yield piece.text

    return StreamingResponse(pieces(), media_type="text/plain; charset=utf-8")
