// Talks to the server. The key stays in this tab.

const KEY = "rtlang-key";

export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const getKey = () => sessionStorage.getItem(KEY) ?? "";

export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (getKey()) headers.Authorization = `Bearer ${getKey()}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  let message = `${path}: HTTP ${answer.status}`;
  const body = await answer.json().catch(() => null);
  if (body?.error?.message) message = body.error.message;
  throw Object.assign(new Error(message), { status: answer.status });
}

export const getJson = async (path) => (await call(path)).json();

// Server-sent events of an answer, one parsed object at a time.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
