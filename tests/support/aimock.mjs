// A double of model providers that speaks their real wires (@copilotkit/aimock), with what the tests ask for.
// Prints its address. The folder of the package is the first argument.
import { pathToFileURL } from "node:url";
import path from "node:path";

const folder = path.join(process.argv[2], "node_modules", "@copilotkit", "aimock", "dist", "index.js");
const { LLMock } = await import(pathToFileURL(folder));

const mock = new LLMock({ port: 0, host: "127.0.0.1" });
const usage = { prompt_tokens: 12, completion_tokens: 9, total_tokens: 21, input_tokens: 12, output_tokens: 9 };
mock.onMessage("hello", { content: "Hello there, this is a somewhat longer answer.", usage }, { chunkSize: 5 });
mock.onMessage("both", {
  content: "Let me look. ",
  toolCalls: [
    { id: "call_a", name: "weather", arguments: '{"city":"Rome"}' },
    { id: "call_b", name: "weather", arguments: '{"city":"Oslo"}' },
  ],
});
mock.onMessage("think", { content: "42", reasoning: "Six times seven." });
mock.onMessage("cut", { content: "This will be cut off in the middle of it all." }, { chunkSize: 4, latency: 50, truncateAfterChunks: 5 });
const either = '{"answer": {"id": ["a", "b"], "x": {"y": "}"}}}';
mock.onMessage("either as text", { content: either }, { chunkSize: 5 });
mock.onMessage("either by a tool", { toolCalls: [{ id: "call_c", name: "answer", arguments: either }] }, { chunkSize: 5 });
for (const [word, status] of [["busy", 429], ["broken", 500]]) {
  const error = { error: { message: `${word} now`, type: "server_error" }, status };
  mock.addFixture({ match: { userMessage: `${word} once`, sequenceIndex: 0 }, response: error });
  mock.addFixture({ match: { userMessage: `${word} once` }, response: { content: "Now it works." } });
  mock.addFixture({ match: { userMessage: `${word} always` }, response: error });
}
mock.addFixture({
  match: { userMessage: "no key" },
  response: { error: { message: "Incorrect API key provided", type: "authentication_error" }, status: 401 },
});
mock.prependFixture({
  match: { predicate: (request) => request.messages.at(-1)?.role === "tool" },
  response: { content: "Sunny in Rome, snow in Oslo." },
});
await mock.start();
console.log(mock.url);
