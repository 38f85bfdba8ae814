// The chat box: a conversation through /v1/chat/completions, streamed.

import { call, events } from "/page/server.js";

const byId = (id) => document.getElementById(id);
let messages = [];
let model = "";

export const setModel = (name) => { model = name; };

function turn(role, text) {
  const box = document.createElement("div");
  box.className = `turn ${role}`;
  const said = document.createElement("span");
  said.textContent = text;
  box.append(said);
  byId("chat-log").append(box);
  box.scrollIntoView({ block: "nearest" });
  return { said, note: (text) => { const small = document.createElement("small"); small.textContent = text; box.append(small); } };
}

async function send() {
  const text = byId("chat-text").value.trim();
  if (!text) return;
  byId("chat-text").value = "";
  byId("chat-send").disabled = true;
  messages.push({ role: "user", content: text });
  turn("user", text);
  const answer = turn("assistant", "");
  try {
    const body = { model, messages, stream: true, stream_options: { include_usage: true } };
    const response = await call("/v1/chat/completions", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      answer.said.textContent += event.choices[0]?.delta?.content ?? "";
      if (event.usage) {
        const cached = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
        answer.note(`${cached} of ${event.usage.prompt_tokens} prompt tokens cached, ${event.usage.completion_tokens} generated`);
      }
    }
    messages.push({ role: "assistant", content: answer.said.textContent });
  } catch (error) {
    messages.pop();
    answer.note(error.message);
  } finally {
    byId("chat-send").disabled = false;
  }
}

export function startChat() {
  byId("chat-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  byId("chat-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); byId("chat-form").requestSubmit(); }
  });
  byId("chat-clear").addEventListener("click", () => { messages = []; byId("chat-log").replaceChildren(); });
}
