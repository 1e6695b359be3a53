/**
 * A question as the page shows it, whichever way it came: from the chat as an elicitation, or from a method
 * that runs in Tools as an item of its stream. Both are told as a schema, so that one form shows them all.
 */
import type { Elicit, Item, Reply, RequestType, Schema, Shown } from "../api/types";
import { isObject } from "../forms/schema";

export interface QuestionView {
  id: string;
  message: string;
  /** Of the content of an answer. */
  schema: Schema;
  context: Record<string, unknown> | null;
  component: Shown | null;
  /** A page to visit; then there is no content. */
  url: string | null;
  /** When it is too late, in milliseconds of `performance.now()`. */
  deadline: number | null;
}

const MARKER = "\n\n--x-model-context:";

export function fromElicit(elicit: Elicit): QuestionView {
  const schema = elicit.schema ?? {};
  const context = elicit.context ?? schema["x-model-context"] ?? null;
  return {
    id: elicit.elicitId,
    message: humanPart(elicit.message),
    schema,
    context: context !== null && Object.keys(context).length > 0 ? context : null,
    component: elicit.component ?? null,
    url: elicit.url ?? null,
    deadline: elicit.until ? deadlineOf(Date.parse(elicit.until) - Date.now()) : null,
  };
}

/** Without the data that follow the text for programs. */
export function humanPart(message: string): string {
  const at = message.lastIndexOf(MARKER);
  return at < 0 ? message : message.slice(0, at);
}

type RequestItem = Extract<Item, { type: "request" }>;

export function fromRequest(
  item: Pick<RequestItem, "request_id" | "request_type" | "timeout_ms">,
): QuestionView {
  const view = {
    id: item.request_id,
    context: null,
    component: null,
    url: null,
    deadline: deadlineOf(item.timeout_ms),
  };
  const asked = item.request_type;
  if ("Confirm" in asked) {
    const { message, default: given } = asked.Confirm;
    return {
      ...view,
      message,
      schema: only("confirmed", { title: message, type: "boolean", ...optional("default", given) }),
    };
  }
  if ("Prompt" in asked) {
    const { message, default: given, placeholder } = asked.Prompt;
    const examples = placeholder === undefined ? {} : { examples: [placeholder] };
    return {
      ...view,
      message,
      schema: only("text", { title: message, type: "string", ...optional("default", given), ...examples }),
    };
  }
  if ("Select" in asked) {
    const { message, options, multi_select } = asked.Select;
    const choices = options.map(({ value, label, description }) => ({
      const: value,
      title: label,
      ...optional("description", description),
    }));
    const schema = multi_select
      ? only("choices", { title: message, type: "array", items: { oneOf: choices } })
      : only("choice", { title: message, type: "string", oneOf: choices });
    return { ...view, message, schema };
  }
  const { type_name, data, schema = {} } = asked.Custom;
  const { message, ...rest } = isObject(data)
    ? data
    : { message: undefined, ...(data == null ? {} : { data }) };
  const { url, ...context } = rest as Record<string, unknown>;
  const isUrl = type_name === "url" && typeof url === "string";
  const shown = isUrl ? context : rest;
  return {
    ...view,
    message: typeof message === "string" ? message : type_name,
    schema,
    context: Object.keys(shown).length > 0 ? shown : null,
    url: isUrl ? url : null,
  };
}

const DAY = 24 * 3600 * 1000;

/** A limit of days is no reason to hurry: it is not shown. */
const deadlineOf = (timeout: number | undefined): number | null =>
  timeout === undefined || timeout > DAY ? null : performance.now() + timeout;

/** The answer on the wire of the hub. */
export function toAnswer(asked: RequestType, reply: Reply): unknown {
  if (reply.action === "decline") return "Declined";
  if (reply.action === "cancel") return "Cancelled";
  const content = reply.content as Record<string, unknown>;
  if ("Confirm" in asked) return { Confirmed: content.confirmed };
  if ("Prompt" in asked) return { Text: content.text ?? "" };
  if ("Select" in asked) return { Selected: asked.Select.multi_select ? content.choices : [content.choice] };
  return { Custom: asked.Custom.type_name === "url" ? true : (reply.content ?? null) };
}

/** The name of the only field, if all that is asked is yes or no. */
export function yesOrNo(schema: Schema): { name: string; default: boolean | null } | null {
  const fields = Object.entries(schema.properties ?? {});
  const [field] = fields;
  if (fields.length !== 1 || field === undefined) return null;
  const [name, { type, default: given }] = field;
  if (type !== "boolean" || !schema.required?.includes(name)) return null;
  return { name, default: typeof given === "boolean" ? given : null };
}

const only = (name: string, schema: Schema): Schema => ({
  type: "object",
  properties: { [name]: schema },
  required: [name],
});

const optional = <V>(name: string, value: V | undefined): Record<string, V> =>
  value === undefined ? {} : { [name]: value };
