/** Text as it is, in which addresses of the web are links. */
import type { ReactNode } from "react";
import { SafeLink } from "./Markdown";

/** Brackets are a part of it in pairs, and what ends a sentence is not, at its end. */
const ADDRESS = /(https?:\/\/(?:\([^\s<>"()]*\)|[^\s<>"()])*(?:\([^\s<>"()]*\)|[^\s<>"().,;:!?\]}'`*]))/;

export function Linked({ text }: { text: string }): ReactNode {
  return text.split(ADDRESS).map((part, n) =>
    n % 2 ? (
      // biome-ignore lint/suspicious/noArrayIndexKey: a part is what it is by its place
      <SafeLink key={n} href={part}>
        {part}
      </SafeLink>
    ) : (
      part
    ),
  );
}
