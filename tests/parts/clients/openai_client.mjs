// The `openai` package for Node as a chat front end: node openai_client.mjs PACKAGE URL TOKEN. Ends with 1 at the first surprise.
import assert from "node:assert/strict";

const [, , location, baseURL, apiKey] = process.argv;
const { default: OpenAI } = await import(location);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const models = await client.models.list();
assert.equal(models.data[0].id, "real");

// Whole, and its usage.
const messages = [{ role: "user", content: "hello" }];
const whole = await client.chat.completions.create({ model: "real", messages });
assert.equal(whole.choices[0].message.content, "You said: hello");
assert.equal(whole.usage.prompt_tokens, 12);

// Streamed.
const stream = await client.chat.completions.create({ model: "real", user: "s", messages, stream: true, stream_options: { include_usage: true } });
let text = "", usage;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, "You said: hello");
assert.equal(usage.completion_tokens, 3);

// The client's own tool.
const tools = [{ type: "function", function: { name: "weather", description: "Tells the weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const asked = [{ role: "user", content: "will it rain?" }];
const calls = await client.chat.completions.create({ model: "real", user: "w", messages: asked, tools });
const call = calls.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "weather");
assert.deepEqual(JSON.parse(call.function.arguments), { city: "Bonn" });

// Responses, whole and streamed.
const response = await client.responses.create({ model: "real", user: "r", input: "hello" });
assert.equal(response.output_text, "You said: hello");
const events = [];
for await (const event of await client.responses.create({ model: "real", user: "r2", input: "hello", stream: true })) events.push(event);
assert.equal(events.at(-1).type, "response.completed");
assert.equal(events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""), "You said: hello");

// Errors in this dialect.
await assert.rejects(client.chat.completions.create({ model: "other", messages }), (error) => error.status === 404 && error.code === "model_not_found");
const stranger = new OpenAI({ baseURL, apiKey: "not-a-token-of-ours", maxRetries: 0 });
await assert.rejects(stranger.models.list(), (error) => error.status === 401);
console.log("ok");
