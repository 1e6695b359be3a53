// The command line of MCP Inspector: a connection of its own for each request.

import { MODE, Person, SERVER, run } from "./checks.mjs";
import { output } from "./commands.mjs";

async function request(method, ...options) {
  const flags = ["--cli", "--quiet", "--format", "json", "--protocol-era", MODE, "--method", method];
  return JSON.parse(await output("mcp-inspector", ...flags, ...options, "--", ...SERVER)).result;
}

const unasked = "declares no elicitation: --cli ends with its one request and cannot ask a person";

await run(
  {
    revision: async () => (await request("initialize")).protocolVersion,
    tools: async () => (await request("tools/list")).tools.map((tool) => tool.name),
    call: (name, args) =>
      request("tools/call", "--tool-name", name, "--tool-args-json", JSON.stringify(args)),
  },
  new Person(),
  {
    progress: "sends no progress token: --cli prints the result and nothing else",
    accept: unasked,
    decline: unasked,
    cancel: unasked,
    sample: "declares no sampling: --cli has no model",
    book: unasked,
    machine: unasked,
    asks: unasked,
  },
);
