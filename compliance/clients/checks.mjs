// What `checks.py` is for Python clients: does the checks, and prints one JSON line for each.
//
// A script is started as `SCRIPT MODE SERVER...`. It gives `run` a connected client as
// { revision(), tools(), call(name, args, onProgress) }, the person who answers its questions, and what this
// client cannot do by its own design, with the reasons. `MIDCALL_CHECKS` may name the checks to do.

export const MODERN = "2026-07-28";
export const TIMEOUT_MS = 20_000;
export const SUMMARY = "all is well";
const CONTEXT = "x-model-context";
const MARKER = `\n\n--${CONTEXT}: application/json\n`;
const ROUTE = { origin: "Paris", destination: "Rome" };
export const [MODE, ...SERVER] = process.argv.slice(2);
export const OVER_HTTP = SERVER[0].startsWith("http://");
export const OVER_SSE = OVER_HTTP && SERVER[0].endsWith("/sse");

const ANSWERS = { confirmed: true, text: "Ada", choice: "large" };

/** Answers a wizard's questions, all or up to the second, and those of a booking by what they show. */
export class Person {
  asked = [];
  shown = [];
  #action = "accept";
  #answers = ANSWERS;

  begin(action = "accept", answers = ANSWERS) {
    this.#answers = answers;
    this.asked = [];
    this.shown = [];
    this.#action = action;
  }

  answer({ params }) {
    const fields = Object.keys(params.requestedSchema.properties);
    this.asked.push(fields.join(" "));
    if (this.asked.length === 2 && this.#action !== "accept") return { action: this.#action };
    const known = fields.filter((field) => field in this.#answers);
    if (known.includes(fields[0])) {
      return { action: "accept", content: Object.fromEntries(known.map((name) => [name, this.#answers[name]])) };
    }
    const { message } = params;
    const end = message.lastIndexOf(MARKER);
    const inMessage = end < 0 ? null : JSON.parse(message.slice(end + MARKER.length));
    const inSchema = params.requestedSchema[CONTEXT] ?? null;
    const content = picked(inSchema ?? inMessage);
    const text = end < 0 ? message : message.slice(0, end);
    this.shown.push({ text, inMessage, inSchema, answer: content });
    return { action: "accept", content };
  }
}

/** The cheapest flight, or the first seat that is free. */
function picked({ flights, seatMap }) {
  if (flights) return { flightId: flights.toSorted((a, b) => a.price - b.price)[0].id };
  for (let row = 1; row <= seatMap.rows; row++) {
    const seat = seatMap.columns.find((column) => !seatMap.taken.includes(`${row}${column}`));
    if (seat) return { row, seat };
  }
  throw new Error("no seat is free");
}

/** What a tool gave, as `examples/twenty.json` has it. */
function seen({ content, structuredContent, isError }) {
  if (isError) return { error: content[0].text };
  if (!structuredContent) return { content: content.map(block) };
  const names = Object.keys(structuredContent);
  const wrapped = names.length === 1 && names[0] === "result";
  return { value: wrapped ? structuredContent.result : structuredContent };
}

function block({ type, text, data, mimeType, resource }) {
  if (type === "text") return text;
  return resource ? [type, resource.mimeType, resource.text] : [type, mimeType, data];
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
  const twenty = async (asks) => {
    const saw = {};
    for (const { tool, arguments: args, answers } of JSON.parse(process.env.MIDCALL_TWENTY)) {
      if (Boolean(answers) !== asks) continue;
      person.begin("accept", answers ?? {});
      saw[tool] = seen(await client.call(`twenty.${tool}`, args));
    }
    return saw;
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
    book: async () => {
      person.begin();
      const { structuredContent } = await client.call("flights.book_flight", ROUTE);
      return { asked: person.asked, shown: person.shown, ticket: structuredContent };
    },
    machine: async () => {
      person.begin();
      const { structuredContent } = await client.call("machines.greeting", {});
      return { asked: person.asked, event: structuredContent };
    },
    values: () => twenty(false),
    asks: () => twenty(true),
  };
  const wanted = process.env.MIDCALL_CHECKS?.split(" ") ?? Object.keys(checks);
  for (const [check, observe] of Object.entries(checks)) {
    if (check in cannot) {
      report({ check, cannot: cannot[check] });
      continue;
    }
    if (!wanted.includes(check)) continue;
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
