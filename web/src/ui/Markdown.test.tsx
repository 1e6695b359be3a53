// @vitest-environment happy-dom
import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";
import { Linked } from "./Linked";
import { Markdown, plainText } from "./Markdown";

afterEach(cleanup);

const shown = (text: string): string => render(<Markdown text={text} />).container.innerHTML;

describe("Markdown", () => {
  it("shows what models write", () => {
    render(
      <Markdown
        text={"# Title\n\nSome **bold** `code`\n\n- one\n- two\n\n| a | b |\n|---|--:|\n| 1 | 2 |"}
      />,
    );
    expect(screen.getByRole("heading").textContent).toBe("Title");
    expect(screen.getAllByRole("listitem").map((item) => item.textContent)).toEqual(["one", "two"]);
    expect(screen.getAllByRole("cell").map((cell) => cell.textContent)).toEqual(["1", "2"]);
  });

  it("can be read without its marks", () => {
    expect(plainText("# Title\nText")).toBe("Title Text");
    expect(plainText("Buy\n\n- tea\n- *milk*\n\n| a | b |\n|---|---|\n| 1 | 2 |")).toBe(
      "Buy tea milk a b 1 2",
    );
    expect(plainText("Place 2 × **tea**, _now_?\n\nSee [the list](https://example.com) and `a*b`.")).toBe(
      "Place 2 × tea, now? See the list and a*b.",
    );
  });

  it("lets lists, quotations and tables run as their text does", () => {
    const { container } = render(
      <Markdown text={"- פריט\n\n1. פריט\n\n> ציטוט\n\n| שם |\n|---|\n| עדה |"} />,
    );
    const parts = container.querySelectorAll("ul, ol, blockquote, .table-scroll");
    expect([...parts].map((part) => part.getAttribute("dir"))).toEqual(["auto", "auto", "auto", "auto"]);
  });

  it.each([
    "<img src=x onerror=alert(1)>",
    "text <script>alert(1)</script> more",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "![x](javascript:alert(1))",
    "<a href='javascript:alert(1)'>x</a>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "```html\n<script>alert(1)</script>\n```",
  ])("never makes part of the page of %j", (text) => {
    const { container } = render(<Markdown text={text} />);
    expect(container.querySelector("script, img, iframe, [onerror]")).toBeNull();
    for (const link of container.querySelectorAll("a")) expect(link.protocol).toMatch(/^https?:$|^mailto:$/);
  });

  it.each([">", "> ", "1. ", "- + * ", "*a **b ", "_a_b", "[a](", "![", "*", "<a "])(
    "is not held by a stranger who writes %j without end",
    (piece) => {
      const text = piece.repeat(Math.floor(50_000 / piece.length));
      expect(render(<Markdown text={text} />).container.querySelector("pre")?.textContent).toBe(text);
    },
  );

  it("opens links elsewhere, and tells nobody", () => {
    render(<Markdown text="[docs](https://example.com/a?b=1&c=2)" />);
    const link = screen.getByRole<HTMLAnchorElement>("link");
    expect(link.href).toBe("https://example.com/a?b=1&c=2");
    expect(link.rel).toContain("noopener");
    expect(link.target).toBe("_blank");
  });

  it("loads no picture, but links to it", () => {
    render(<Markdown text="![a cat](https://example.com/cat.png)" />);
    expect(screen.getByRole("link", { name: "a cat" })).toBeTruthy();
  });

  it("reads characters that are written as in HTML", () => {
    expect(shown("a &amp; b &#8364; &unknown;")).toContain("a &amp; b € &amp;unknown;");
  });

  it("shows half of a text as far as it goes", () => {
    expect(shown("Some **bo")).toContain("Some **bo");
    expect(shown("```py\nprint(")).toContain("print(");
  });

  it("leaves a text as it is that is longer than anybody reads", () => {
    expect(shown("_a".repeat(100_000))).toContain("_a_a");
    expect(shown(`**bold**${" ".repeat(100_000)}`)).toContain("**bold**");
  });

  it("has a way to copy code", () => {
    render(<Markdown text={"```sh\nls\n```"} />);
    expect(screen.getByRole("button", { name: "Copy code" })).toBeTruthy();
  });
});

describe("text that is no Markdown", () => {
  it("has links, where an address ends with its sentence, and keeps its brackets", () => {
    const text =
      "See (http://a.example/q/x_y?z=1), *not* javascript:alert(1) or https://b.example. https://c.example/A_(b)!";
    render(<Linked text={text} />);
    const links = screen.getAllByRole("link") as HTMLAnchorElement[];
    expect(links.map((link) => link.href)).toEqual([
      "http://a.example/q/x_y?z=1",
      "https://b.example/",
      "https://c.example/A_(b)",
    ]);
    expect(document.body.textContent).toBe(text);
  });
});
