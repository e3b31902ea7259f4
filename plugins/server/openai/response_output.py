"""The output of `/v1/responses`: items of reasoning, text and calls, and the events by which they stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from augury.plugins.server.tools import Delta

_PARTS: dict[str, tuple[str, dict[str, Any]]] = {  # by the item's type: the place of its text, and the name of that
    "message": ("output_text", {"annotations": [], "logprobs": []}),
    "reasoning": ("reasoning_text", {}),
}


def item_id(prefix: str) -> str:
    """A new id."""
    return f"{prefix}_{uuid4().hex}"


class Output:
    """Grows by pieces of an answer, with an event for each addition.

    Attributes:
        items: All so far; the last one may still grow.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._call: int | None = None  # which call the last item is

    def add(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Take a piece."""
        if delta.call is not None:
            if self._call != delta.call:
                yield from self.end()
                self._call = delta.call
                call = {"call_id": item_id("call"), "name": delta.name, "arguments": ""}
                yield from self._begin({"id": item_id("fc"), "type": "function_call", "status": "in_progress", **call})
            if delta.arguments:
                self.items[-1]["arguments"] += delta.arguments
                yield self._event("response.function_call_arguments.delta", delta=delta.arguments)
            return
        kind, text = ("reasoning", delta.reasoning) if delta.reasoning else ("message", delta.content)
        if text:
            yield from self._add_text(kind, text)

    def _add_text(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        part_type, more = _PARTS[kind]
        if not self._is_open or self.items[-1]["type"] != kind:
            yield from self.end()
            own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            prefix = "msg" if kind == "message" else "rs"
            yield from self._begin({"id": item_id(prefix), "type": kind, "status": "in_progress", "content": [], **own})
            part = {"type": part_type, "text": "", **more}
            self.items[-1]["content"].append(part)
            yield self._event("response.content_part.added", content_index=0, part=dict(part))
        self.items[-1]["content"][0]["text"] += text
        extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"response.{part_type}.delta", content_index=0, delta=text, **extra)

    def end(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """Complete the last item, if there is one that is not."""
        if not self._is_open:
            return
        item = self.items[-1]
        if item["type"] == "function_call":
            yield self._event("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            (part,) = item["content"]
            extra: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._event(f"response.{part['type']}.done", content_index=0, text=part["text"], **extra)
            yield self._event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    @property
    def _is_open(self) -> bool:
        return bool(self.items) and self.items[-1]["status"] == "in_progress"

    def _begin(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **more}
