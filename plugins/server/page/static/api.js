// The server as the page talks to it.

/** An answer that was refused or broke off, in words for people. */
export class ServerError extends Error {
  constructor(message, status = 0, progress = null) {
    super(message);
    this.status = status;
    this.progress = progress; // of a model that is being loaded: task, done, total
  }
}

const LOST = "The connection was lost before the answer ended.";

async function ask(path, key, options = {}) {
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  let body = null;
  try {
    body = await response.json();
  } catch {
    // a body that says nothing
  }
  const message = body?.error?.message ?? `The server answered with status ${response.status}.`;
  throw new ServerError(message, response.status, body?.error?.progress);
}

/** The names of the server's models, each by its first. */
export const models = async (key) =>
  (await (await ask("/v1/models", key)).json()).data.filter(({ id, aliases }) => id === aliases[0]).map(({ id }) => id);

/** What the server says of a model and of itself. */
export const props = async (key, model) => (await ask(`/props?model=${encodeURIComponent(model)}`, key)).json();

/** The chunks of a streamed answer. Raises a ServerError where it breaks off. */
export async function* chat(body, key, signal) {
  const response = await ask("/v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, return_draft_origin: true }),
    signal,
  });
  for await (const data of events(response.body, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message ?? "The server ended the answer.", chunk.error.code ?? 500);
    yield chunk;
  }
  throw new ServerError(LOST);
}

/** The data of each event of a stream. A browser's own EventSource cannot send a request with a body. */
async function* events(stream, signal) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  let rest = "", data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    throw error instanceof TypeError ? new ServerError(LOST) : error;
  } finally {
    reader.cancel().catch(() => {});
  }
}
