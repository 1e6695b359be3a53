/** What a run shows of its items: lines of a program as a terminal, pieces of a text as one text, a tree as a drawing. */
import type { Received } from "../api/socket";
import type { Schema } from "../api/types";
import { isObject } from "../forms/schema";
import { type Content, resultsOf } from "../ui/ContentView";
import { type Tree, treeIn } from "./tree";

export interface TerminalLine {
  stream: "stdout" | "stderr";
  line: string;
}

export type Shown = { key: number } & (
  | { kind: "terminal"; lines: TerminalLine[] }
  | { kind: "text"; text: string }
  | { kind: "tree"; tree: Tree }
  | { kind: "content"; contents: Content[] }
  | { kind: "item"; item: Received }
);

/** The names of events that are a piece of a text, and of the field that it is in. */
const PIECES: Record<string, string> = { chat_content: "content", content: "text" };

/** `returns` is the schema of what is given, which says what is bytes in it, and `name` is for these. */
export function shownOf(items: readonly Received[], returns?: Schema | null, name = "file"): Shown[] {
  const shown: Shown[] = [];
  items.forEach((item, key) => {
    const content = item.type === "data" && isObject(item.content) ? item.content : {};
    const last = shown.at(-1);
    const { type, line } = content;
    const piece =
      typeof type === "string" && Object.hasOwn(PIECES, type) ? content[PIECES[type] ?? ""] : null;
    const tree = treeIn(content);
    if ((type === "stdout" || type === "stderr") && typeof line === "string") {
      if (last?.kind === "terminal") last.lines.push({ stream: type, line });
      else shown.push({ key, kind: "terminal", lines: [{ stream: type, line }] });
    } else if (typeof piece === "string") {
      if (last?.kind === "text") last.text += piece;
      else shown.push({ key, kind: "text", text: piece });
    } else if (tree !== null) shown.push({ key, kind: "tree", tree });
    else if (item.type === "data") {
      const contents = resultsOf(item.content, returns, name);
      const isJson = contents.every((one) => one.kind === "json");
      shown.push(isJson ? { key, kind: "item", item } : { key, kind: "content", contents });
    } else if (item.type !== "progress" && item.type !== "done") shown.push({ key, kind: "item", item });
  });
  return shown;
}
