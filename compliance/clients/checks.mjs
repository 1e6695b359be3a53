// What `checks.py` is for Python clients: does the checks, and prints one JSON line for each.
//
// A script is started as `SCRIPT MODE SERVER...`. It gives `run` a connected client as
// { revision(), tools(), call(name, args, onProgress) }, the person who answers its questions, and what this
// client cannot do by its own design, with the reasons.

export const MODERN = "2026-07-28";
export const TIMEOUT_MS = 20_000;
export const SUMMARY = "all is well";
export const [MODE, ...SERVER] = process.argv.slice(2);
export const OVER_HTTP = SERVER[0].startsWith("http://");
export const OVER_SSE = OVER_HTTP && SERVER[0].endsWith("/sse");

const ANSWERS = { confirmed: true, text: "Ada", choice: "large" };

/** Answers the questions of a wizard, all of them or up to the second. */
export class Person {
  asked = [];
  #action = "accept";

  begin(action) {
    this.asked = [];
    this.#action = action;
  }

  answer({ params }) {
    const [field] = Object.keys(params.requestedSchema.properties);
    this.asked.push(field);
    if (this.asked.length === 2 && this.#action !== "accept") return { action: this.#action };
    return { action: "accept", content: { [field]: ANSWERS[field] } };
  }
}

/** What the client's model says. */
export function sampled() {
  return { role: "assistant", content: { type: "text", text: SUMMARY }, model: "none" };
}

export async function run(client, person, cannot = {}) {
  const order = async (action) => {
    person.begin(action);
    const result = await client.call("order", {});
    return { asked: person.asked, text: result.content[0].text, failed: Boolean(result.isError) };
  };
  const checks = {
    connect: () => client.revision(),
    list: () => client.tools(),
    call: async () => (await client.call("add", { a: 2, b: 3 })).structuredContent,
    progress: async () => {
      const heard = [];
      await client.call("count", { to: 4 }, ({ progress }) => heard.push(progress));
      return heard;
    },
    accept: () => order("accept"),
    decline: () => order("decline"),
    cancel: () => order("cancel"),
    sample: async () => (await client.call("summarize", { text: "a long story" })).content[0].text,
  };
  for (const [check, observe] of Object.entries(checks)) {
    if (check in cannot) {
      report({ check, cannot: cannot[check] });
      continue;
    }
    try {
      report({ check, saw: await observe() });
    } catch (error) {
      report({ check, failed: String(error) });
    }
  }
}

function report(line) {
  console.log(JSON.stringify(line));
}
