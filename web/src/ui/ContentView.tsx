/**
 * What a method gives, shown: pictures and sound as such, links as links, files by name and size, the rest as JSON.
 *
 * It may come from a stranger: a picture is only drawn (nothing of it runs), a link leads nowhere but to a page or
 * an e-mail address, and a file is only ever saved.
 */
import { type ReactNode, useMemo } from "react";
import type { Schema } from "../api/types";
import { isBytes, isObject, resolve, withoutNull } from "../forms/schema";
import { Icon } from "./Icon";
import { Json } from "./Json";
import { SafeLink } from "./Markdown";
import { nameText, sizeText } from "./size";

export type Content =
  | { kind: "image" | "audio"; type: string; data: string }
  | { kind: "file"; name: string; type: string; data: string }
  | { kind: "text"; name: string; text: string }
  | { kind: "link"; uri: string; name: string; about: string }
  | { kind: "json"; value: unknown };

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml|x-icon)$/;
const AUDIO = /^audio\/[\w.+-]{1,40}$/;
const BASE64 = /^[A-Za-z0-9+/_-]*={0,2}$/;
/** Characters of base64 that are drawn or played; a larger one can be saved. */
const MOST_SHOWN = 14_000_000;

/** One value that was given; a list that mixes content with text is several. */
export function contentsOf(value: unknown): Content[] {
  if (!Array.isArray(value)) return [contentOf(value)];
  return value.some(isBlock) ? value.map(contentOf) : [{ kind: "json", value }];
}

/** The same of a result, with the bytes in it as files: its schema says what is bytes, as text looks the same. */
export function resultsOf(value: unknown, returns: Schema | null | undefined, name: string): Content[] {
  if (hasContent(value) || returns == null) return contentsOf(value);
  const files: Content[] = [];
  const without = (part: unknown, schema: Schema, called: string): unknown => {
    const own = withoutNull(schema, returns).schema;
    if (isBytes(own) && isBase64(part)) {
      const file: Content = { kind: "file", name: `${called}.bin`, type: "", data: part };
      files.push(file);
      return `[a file of ${sizeText(bytesIn(part))}]`;
    }
    if (Array.isArray(part) && isObject(own.items))
      return part.map((one, n) => without(one, own.items as Schema, `${called}-${n + 1}`));
    if (!isObject(part)) return part;
    const { properties = {}, additionalProperties: others } = own;
    const inside = Object.entries(part).map(([key, one]) => {
      const about = Object.hasOwn(properties, key) ? properties[key] : others;
      return [key, isObject(about) ? without(one, about as Schema, key) : one];
    });
    return Object.fromEntries(inside);
  };
  const whole = without(value, insideOf(returns, value), name);
  if (files.length === 0) return contentsOf(value);
  return typeof whole === "string" ? files : [{ kind: "json", value: whole }, ...files];
}

/** What a method gives; of one elsewhere, without the object that MCP has around what is none. */
function insideOf(returns: Schema, value: unknown): Schema {
  const { result, ...more } = resolve(returns, returns).properties ?? {};
  const isAround = result !== undefined && Object.keys(more).length === 0;
  return isAround && !(isObject(value) && "result" in value) ? result : returns;
}

/** Whether there is something in it to be shown otherwise than as JSON. */
export const hasContent = (value: unknown): boolean =>
  isBlock(value) || (Array.isArray(value) && value.some(isBlock));

const isBlock = (value: unknown): boolean => contentOf(value).kind !== "json";

function contentOf(value: unknown): Content {
  const json: Content = { kind: "json", value };
  if (!isObject(value)) return json;
  const { type, data, mimeType, uri, resource, text } = value;
  const mime = typeof mimeType === "string" ? mimeType.toLowerCase() : "";
  switch (type) {
    case "image":
    case "audio": {
      if (!isBase64(data)) return json;
      const fits = (type === "image" ? IMAGE : AUDIO).test(mime) && data.length <= MOST_SHOWN;
      return fits
        ? { kind: type, type: mime, data }
        : { kind: "file", name: nameFor(type, mime), type: mime, data };
    }
    case "text":
      return typeof text === "string" && Object.keys(value).every((key) => TEXT_KEYS.has(key))
        ? { kind: "text", name: "", text }
        : json;
    case "resource_link":
      return typeof uri === "string" ? { kind: "link", uri, ...titled(value, uri) } : json;
    case "resource":
      return isObject(resource) ? resourceOf(resource) : json;
    default:
      return json;
  }
}

const TEXT_KEYS = new Set(["type", "text", "annotations", "_meta"]);

/** The contents of a resource: text or bytes. */
export function resourceOf(resource: Record<string, unknown>): Content {
  const { uri, mimeType, text, blob } = resource;
  const name = typeof uri === "string" ? (uri.split(/[/?#]/).filter(Boolean).pop() ?? uri) : "file";
  const type = typeof mimeType === "string" ? mimeType.toLowerCase() : "";
  if (typeof text === "string") return { kind: "text", name: String(uri ?? ""), text };
  if (!isBase64(blob)) return { kind: "json", value: resource };
  if (blob.length <= MOST_SHOWN && IMAGE.test(type)) return { kind: "image", type, data: blob };
  if (blob.length <= MOST_SHOWN && AUDIO.test(type)) return { kind: "audio", type, data: blob };
  return { kind: "file", name, type, data: blob };
}

/** The data that a resource has as text, if it is all that the text says: large numbers would be others. */
function dataIn(text: string): unknown {
  if (!/^[{[]/.test(text)) return null;
  try {
    const data: unknown = JSON.parse(text);
    return JSON.stringify(data) === text ? data : null;
  } catch {
    return null;
  }
}

function titled(value: Record<string, unknown>, uri: string): { name: string; about: string } {
  const { title, name, description } = value;
  const shown = [title, name].find((one) => typeof one === "string" && one !== "") as string | undefined;
  return { name: shown ?? uri, about: typeof description === "string" ? description : "" };
}

const isBase64 = (value: unknown): value is string => typeof value === "string" && BASE64.test(value);

const nameFor = (kind: string, mime: string): string =>
  `${kind}.${/^[\w-]+\/([\w-]{1,12})/.exec(mime)?.[1] ?? "bin"}`;

export function ContentView({ content }: { content: Content }): ReactNode {
  switch (content.kind) {
    case "image":
      return (
        <figure className="content content-image">
          <img src={`data:${content.type};base64,${standard(content.data)}`} alt="Result" />
          <figcaption>
            <Save name={nameFor("image", content.type)} data={content.data} type={content.type} />
          </figcaption>
        </figure>
      );
    case "audio":
      return (
        <figure className="content content-audio">
          {/* biome-ignore lint/a11y/useMediaCaption: nobody has written captions for what a tool gives */}
          <audio controls src={`data:${content.type};base64,${standard(content.data)}`} aria-label="Result" />
          <figcaption>
            <Save name={nameFor("audio", content.type)} data={content.data} type={content.type} />
          </figcaption>
        </figure>
      );
    case "file":
      return (
        <div className="content content-file">
          <Save name={content.name} data={content.data} type={content.type} />
        </div>
      );
    case "link":
      return (
        <p className="content content-link">
          <Icon name="open" /> <SafeLink href={content.uri}>{content.name}</SafeLink>
          {content.name !== content.uri && <code>{content.uri}</code>}
          {content.about && <span className="muted">{content.about}</span>}
        </p>
      );
    case "text":
      return (
        <div className="content content-text">
          {content.name && <p className="muted">{content.name}</p>}
          <Json value={content.name ? (dataIn(content.text) ?? content.text) : content.text} label="text" />
        </div>
      );
    case "json":
      return <Json value={content.value} label="data" />;
  }
}

/** The name, kind and size of a file, and the way to save it. */
function Save({ name, data, type }: { name: string; data: string; type: string }): ReactNode {
  const size = useMemo(() => bytesIn(data), [data]);
  const save = (): void => {
    // Of no kind that a browser would show: it is saved, whatever it says that it is.
    const url = URL.createObjectURL(new Blob([bytesOf(data)], { type: "application/octet-stream" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name.replace(/[^\w. -]+/g, "_").slice(-100) || "file";
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  };
  return (
    <span className="file">
      <Icon name="file" />
      <span className="file-name">{nameText(name)}</span>
      <span className="muted">
        {type && `${type}, `}
        {sizeText(size)}
      </span>
      <button type="button" className="button button-small" onClick={save}>
        Download<span className="sr-only"> {name}</span>
      </button>
    </span>
  );
}

const bytesIn = (data: string): number => Math.floor((data.replace(/=+$/, "").length * 3) / 4);

const standard = (data: string): string => data.replaceAll("-", "+").replaceAll("_", "/");

function bytesOf(data: string): Uint8Array<ArrayBuffer> {
  const text = atob(standard(data).replace(/=+$/, ""));
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n += 1) bytes[n] = text.charCodeAt(n);
  return bytes;
}
