// @vitest-environment happy-dom
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import type { Reply, Schema } from "../api/types";
import { FlightList } from "../components/FlightList";
import { loadModules, registerComponent } from "../components/registry";
import { SeatPicker } from "../components/SeatPicker";
import { QuestionCard } from "./QuestionCard";
import type { QuestionView } from "./question";

const replies: Reply[] = [];

beforeAll(async () => {
  registerComponent("FlightList", FlightList);
  registerComponent("SeatPicker", SeatPicker);
  Element.prototype.scrollIntoView = () => {};
  vi.stubGlobal("fetch", async () => new Response('{"modules": []}'));
  await loadModules();
});
beforeEach(() => {
  replies.length = 0;
});
afterEach(cleanup);

function show(question: Partial<QuestionView>): void {
  const whole: QuestionView = {
    id: "q",
    message: "Which?",
    schema: {},
    context: null,
    component: null,
    url: null,
    deadline: null,
    ...question,
  };
  render(<QuestionCard question={whole} onReply={(reply) => replies.push(reply)} busy={false} />);
}

const click = (name: string | RegExp): void => {
  fireEvent.click(screen.getByRole("button", { name }));
};

const form = (properties: Record<string, Schema>): Schema => ({
  type: "object",
  properties,
  required: Object.keys(properties),
});

describe("a question", () => {
  it("of yes or no has a button for each", () => {
    show({ schema: form({ confirmed: { type: "boolean" } }) });
    click("No");
    expect(replies).toEqual([{ action: "accept", content: { confirmed: false } }]);
  });

  it("can be declined and cancelled", () => {
    show({ schema: form({ text: { type: "string" } }) });
    click("Decline");
    click("Cancel");
    expect(replies).toEqual([{ action: "decline" }, { action: "cancel" }]);
  });

  it("gets the focus where it is answered", () => {
    show({ schema: form({ text: { type: "string" } }) });
    expect(document.activeElement).toBe(screen.getByRole("textbox"));
  });

  it("may have fields that are left out", () => {
    show({
      schema: {
        type: "object",
        properties: {
          note: { anyOf: [{ type: "string" }, { type: "null" }], default: null },
          plates: { anyOf: [{ type: "integer", minimum: 1 }, { type: "null" }], default: null },
          size: { anyOf: [{ $ref: "#/$defs/Size" }, { type: "null" }], default: null },
          day: { type: "string", format: "date" },
          toppings: { type: "array", items: { $ref: "#/$defs/Size" } },
        },
        $defs: { Size: { type: "string", enum: ["s", "l"] } },
      },
    });
    click("Answer");
    const [{ content }] = replies as unknown as [{ content: Record<string, unknown> }];
    expect(Object.values(content).filter((value) => value !== null)).toEqual([]);
  });

  it("takes what was emptied as empty, not as what was proposed", () => {
    show({
      schema: {
        type: "object",
        properties: {
          nick: { anyOf: [{ type: "string" }, { type: "null" }], default: "Annie" },
          plates: { anyOf: [{ type: "integer" }, { type: "null" }], default: 2 },
          toppings: { type: "array", items: { enum: ["cheese", "olives"] }, default: ["olives"] },
          tags: { type: "array", items: { type: "string" }, default: ["new"] },
          counts: { type: "object", additionalProperties: { type: "integer" }, default: { a: 1 } },
        },
      },
    });
    fireEvent.change(screen.getByLabelText(/Nick/), { target: { value: "" } });
    fireEvent.change(screen.getByLabelText(/Plates/), { target: { value: "" } });
    fireEvent.click(screen.getByLabelText("olives"));
    click("Remove Tags 1");
    click("Remove a");
    click("Answer");
    expect(replies).toEqual([
      { action: "accept", content: { nick: null, plates: null, toppings: [], tags: [], counts: {} } },
    ]);
  });

  it("asks for moments as the server reads them", () => {
    show({ schema: form({ at: { type: "string", format: "date-time" } }) });
    click("Answer");
    expect(screen.getByText("Required")).toBeTruthy();
    fireEvent.change(screen.getByLabelText("At"), { target: { value: "2030-12-31T10:00:00" } });
    click("Answer");
    const [reply] = replies as { content: { at: string } }[];
    expect(reply?.content.at).toMatch(/^2030-12-31T10:00:00[+-]\d{2}:\d{2}$/);
  });

  it("is not sent before it is filled", () => {
    show({ schema: form({ row: { type: "integer" }, seat: { enum: ["A", "B"] } }) });
    click("Answer");
    expect(replies).toEqual([]);
    fireEvent.change(screen.getByLabelText("Row"), { target: { value: "12" } });
    fireEvent.click(screen.getByLabelText("B"));
    click("Answer");
    expect(replies).toEqual([{ action: "accept", content: { row: 12, seat: "B" } }]);
  });

  it("takes several choices in the order in which they are offered", () => {
    const items = { oneOf: [{ const: "a" }, { const: "b" }, { const: "c" }] };
    show({ schema: form({ choices: { type: "array", items } }) });
    fireEvent.click(screen.getByLabelText("c"));
    fireEvent.click(screen.getByLabelText("a"));
    click("Answer");
    expect(replies).toEqual([{ action: "accept", content: { choices: ["a", "c"] } }]);
  });

  it("is filled with lists and nested objects", () => {
    const leg: Schema = form({ to: { type: "string" }, bags: { type: "integer", default: 1 } });
    show({ schema: form({ legs: { type: "array", items: leg } }) });
    click("Add to Legs");
    fireEvent.change(screen.getByLabelText("To"), { target: { value: "Oslo" } });
    click("Answer");
    expect(replies).toEqual([{ action: "accept", content: { legs: [{ to: "Oslo", bags: 1 }] } }]);
  });

  it("shows what it brings along as a table", () => {
    show({ context: { flights: [{ id: "x", price: 3 }] }, schema: form({ id: { type: "string" } }) });
    expect(screen.getAllByRole("columnheader").map((cell) => cell.textContent)).toEqual(["Id", "Price"]);
  });

  it("says which component is missing, and shows a form instead", () => {
    show({ component: { name: "Nowhere", props: {} }, schema: form({ id: { type: "string" } }) });
    expect(screen.getByText("Nowhere")).toBeTruthy();
    expect(screen.getByRole("textbox")).toBeTruthy();
  });

  it("does not open an address that is none", () => {
    show({ url: "javascript:alert(1)" });
    expect(screen.queryByRole("link")).toBeNull();
  });

  it("survives a component that fails", () => {
    vi.spyOn(console, "error").mockImplementation(() => {});
    registerComponent("Broken", () => {
      throw new Error("no props");
    });
    show({ component: { name: "Broken", props: {} } });
    expect(screen.getByRole("alert").textContent).toContain("no props");
    click("Decline");
    expect(replies).toEqual([{ action: "decline" }]);
  });
});

describe("the components", () => {
  const flights = [
    {
      id: "sk-1",
      airline: "SkyHigh",
      number: "SK-1",
      departure: "08:00",
      arrival: "11:30",
      price: 299,
      stops: 0,
    },
    {
      id: "cl-2",
      airline: "CloudAir",
      number: "CL-2",
      departure: "2030-01-01T12:45:00",
      arrival: "16:00",
      price: 349.5,
    },
  ];

  it("FlightList answers with the flight", () => {
    show({ component: { name: "FlightList", props: { flights, message: "Pick" } } });
    expect(screen.getByText("$349.50")).toBeTruthy();
    expect(screen.getByText("12:45")).toBeTruthy();
    click(/Select CloudAir/);
    expect(replies).toEqual([{ action: "accept", content: { flightId: "cl-2" } }]);
  });

  const seatMap = { rows: 3, columns: ["A", "B", "C", "D"], taken: ["1A", "2B"] };

  it("SeatPicker answers with a seat that is free", () => {
    show({ component: { name: "SeatPicker", props: { seatMap } } });
    click("Seat 2B, taken");
    expect(screen.getByRole<HTMLButtonElement>("button", { name: "Choose a seat" }).disabled).toBe(true);
    click("Seat 3C, available");
    click("Take seat 3C");
    expect(replies).toEqual([{ action: "accept", content: { row: 3, seat: "C" } }]);
  });

  it("SeatPicker is one stop for Tab, and arrow keys move as the seats lie", () => {
    show({ component: { name: "SeatPicker", props: { seatMap } } });
    const focused = (): string | null => document.activeElement?.getAttribute("aria-label") ?? null;
    expect(focused()).toBe("Seat 1B, available");
    const press = (key: string): boolean => fireEvent.keyDown(document.activeElement as Element, { key });
    press("ArrowDown");
    expect(focused()).toBe("Seat 2B, taken");
    press("ArrowRight");
    press("ArrowRight");
    press("ArrowRight");
    expect(focused()).toBe("Seat 2D, available");
    press("Home");
    press("ArrowUp");
    expect(focused()).toBe("Seat 1A, taken");
    expect(document.querySelectorAll(".seat[tabindex='0']").length).toBe(1);
  });
});
