// A front end for the tests: `@ag-ui/client`, told what to do by lines of JSON on standard input, one answer a
// line. The folder of the package is the first argument.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const folder = path.join(process.argv[2], "node_modules", "@ag-ui", "client", "dist", "index.mjs");
const { HttpAgent, runHttpRequest, transformHttpEventStream, enforceOutgoingInput } = await import(pathToFileURL(folder));

// The client takes out what the protocol does not know, and warns of it.
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = () => {};

class Agent extends HttpAgent {
  connect(input) {
    const answer = runHttpRequest(() =>
      this.fetch(`${this.url}/connect`, this.requestInit(enforceOutgoingInput(input))),
    );
    return transformHttpEventStream(answer);
  }
}

const agents = new Map();

async function act({ agent: name, act, ...given }) {
  if (act === "open") {
    agents.set(name, new Agent(given));
    return { threadId: agents.get(name).threadId };
  }
  const agent = agents.get(name);
  if (act === "abort") {
    agent.abortRun();
    return {};
  }
  if (act === "seen") return seen(agent, []);
  if (given.say) agent.addMessage({ id: crypto.randomUUID(), role: "user", content: given.say });
  if (given.pending) agent.pendingInterrupts = given.pending;
  const events = [];
  agent.events = events;
  const subscriber = { onEvent: ({ event }) => void events.push(event) };
  const resume = given.resume ? { resume: given.resume } : {};
  await (act === "connect" ? agent.connectAgent({}, subscriber) : agent.runAgent(resume, subscriber));
  return seen(agent, events);
}

const seen = (agent, events) => ({
  events,
  messages: agent.messages,
  interrupts: agent.pendingInterrupts,
  soFar: (agent.events ?? []).length,
  warnings,
});

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { number, ...wanted } = JSON.parse(line);
  act(wanted)
    .then((result) => ({ number, result }))
    .catch((error) => ({ number, error: String(error.message ?? error) }))
    .then((answer) => process.stdout.write(`${JSON.stringify(answer)}\n`));
}
