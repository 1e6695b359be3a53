import { describe, expect, it } from "vitest";
import type { CallEntry } from "../api/types";
import { type Layout, layOut, MOST_STATES, MOST_WAYS, shown, stateName } from "./layout";
import {
  bailOut,
  forkAt,
  type Machine,
  readMachine,
  stateAfter,
  type TrailEntry,
  takenUpTo,
  wayKey,
} from "./machine";

const machine = (...ways: [from: string, to: string, label?: string][]): Machine => {
  const names = new Set(ways.flatMap((way) => [way[0], way[1]]));
  return readMachine({
    id: "m",
    states: [...names].filter((id) => id !== "start" && id !== "end").map((id) => ({ id, action: "ask" })),
    transitions: ways.map(([from, to, label = ""]) => ({ id: [from, to], label })),
  });
};

/** Numbers that look random, and are the same every time. */
function* numbers(seed: number): Generator<number> {
  for (let n = seed; ; ) {
    n = (n * 1_103_515_245 + 12_345) % 2_147_483_648;
    yield n / 2_147_483_648;
  }
}

function random(seed: number, states: number, ways: number): Machine {
  const from = numbers(seed);
  const pick = (): number => Math.floor((from.next().value as number) * states);
  const made = new Map<string, [string, string, string]>();
  const add = (a: string, b: string): void => {
    made.set(wayKey(a, b), [a, b, pick() % 3 ? "" : `label ${pick()}`]);
  };
  for (let n = 0; n <= states; n++) add(n === 0 ? "start" : `s${n - 1}`, n === states ? "end" : `s${n}`);
  while (made.size < ways) add(`s${pick()}`, pick() % 9 ? `s${pick()}` : "end");
  return machine(...made.values());
}

interface Box {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

const boxes = (layout: Layout): Box[] => [
  ...layout.states.map(({ x, y, width, height }) => ({
    left: x - width / 2,
    right: x + width / 2,
    top: y,
    bottom: y + height,
  })),
  ...layout.ways.flatMap(({ label }) =>
    label === null
      ? []
      : [
          {
            left: label.x - label.width / 2,
            right: label.x + label.width / 2,
            top: label.y - 10,
            bottom: label.y + 10,
          },
        ],
  ),
];

const overlap = (a: Box, b: Box): boolean =>
  a.left < b.right - 0.01 && b.left < a.right - 0.01 && a.top < b.bottom - 0.01 && b.top < a.bottom - 0.01;

describe("a drawing", () => {
  it.each([3, 5, 8, 13, 20])(
    "of %d states has nothing over anything else, and everything inside",
    (count) => {
      for (let seed = 1; seed <= 10; seed++) {
        const drawn = random(seed, count, 2 * count);
        const layout = layOut(drawn);
        const all = boxes(layout);
        for (const [n, one] of all.entries()) {
          expect(all.slice(n + 1).filter((other) => overlap(one, other))).toEqual([]);
          expect(Math.min(one.left, one.top)).toBeGreaterThanOrEqual(0);
          expect([one.right <= layout.width, one.bottom <= layout.height]).toEqual([true, true]);
        }
        expect(layout.ways.length).toBe(drawn.transitions.length);
        expect(layout.ways.every(({ path }) => /^M[-\d. ]+([VC][-\d. ]+)+$/.test(path))).toBe(true);
      }
    },
  );

  it("leads from the start at the top to the end at the bottom, and says what leads back", () => {
    const { states, ways } = layOut(
      machine(["start", "a"], ["a", "b", "on"], ["b", "a", "back"], ["b", "end"]),
    );
    expect(states.toSorted((a, b) => a.y - b.y).map((one) => one.id)).toEqual(["start", "a", "b", "end"]);
    const ends = ways.map(({ path }) => path.match(/-?[\d.]+$/)?.[0]).map(Number);
    const begins = ways.map(({ path }) => Number(path.match(/^M\S+ ([-\d.]+)/)?.[1]));
    expect(ways.map((_, n) => Math.sign((ends[n] ?? 0) - (begins[n] ?? 0)))).toEqual([1, 1, -1, 1]);
  });

  it("shows a transition of a state to itself beside it", () => {
    const { ways, states, width } = layOut(machine(["start", "a"], ["a", "a", "again"], ["a", "end"]));
    const loop = ways.find(({ from, to }) => from === to);
    const a = states.find(({ id }) => id === "a");
    expect(loop?.label?.x).toBeGreaterThan((a?.x ?? 0) + (a?.width ?? 0) / 2);
    expect((loop?.label?.x ?? 0) + (loop?.label?.width ?? 0) / 2).toBeLessThanOrEqual(width);
  });

  it("is made of whatever somebody calls a state", () => {
    const names = [
      "__proto__",
      "constructor",
      "<b>",
      "",
      " ",
      "\u202eabc",
      "x".repeat(10_000),
      "a\n\0b",
      "\ud800",
    ];
    const ways = names.map<[string, string]>((name) => ["start", name]);
    const { states, width } = layOut(
      machine(...ways, ...names.map<[string, string]>((name) => [name, "end"])),
    );
    expect(states.length).toBe(names.length + 2);
    expect(new Set(states.map((one) => one.id)).size).toBe(names.length + 2);
    expect(width).toBeLessThan(4000);
  });

  it("of a machine without an end, and of an empty one, is still one", () => {
    expect(layOut(machine(["start", "a"], ["a", "b"], ["b", "a"])).states.length).toBe(4);
    expect(layOut(readMachine({ id: "m" })).states.map(({ id }) => id)).toEqual(["start", "end"]);
  });

  it("of the largest machine is made while a person waits", () => {
    const started = performance.now();
    expect(layOut(random(7, MOST_STATES, MOST_WAYS)).ways.length).toBe(MOST_WAYS);
    expect(performance.now() - started).toBeLessThan(20_000); // it takes one; machines that test are busy
  });
});

describe("text in a drawing", () => {
  it("is one line, as it reads, and no longer than there is room for", () => {
    expect(shown("two\nlines\u0000\tmore", 30)).toBe("two lines more");
    expect(shown("\u202egnp.exe", 30)).toBe("gnp.exe");
    expect(shown("x".repeat(100), 10)).toBe(`${"x".repeat(9)}…`);
    expect(shown("0123456789", 10)).toBe("0123456789");
    expect([...shown("中文".repeat(50), 10)].length).toBeLessThanOrEqual(6);
    expect(stateName("\u200e")).toBe("(no name)");
  });
});

const TRAIL: TrailEntry[] = [
  { from: "start", to: "a", event: {} },
  { from: "a", to: null, event: "x", error: "An event is an object" },
  { from: "a", to: "b", event: {} },
  { from: "b", to: "a", event: {} },
  {
    from: "a",
    to: "end",
    event: { id: ["a", "end"], bail_out: true, reason: "timeout", message: "too long" },
  },
];

describe("a trail", () => {
  it("says where a run was at each point", () => {
    expect(TRAIL.map(stateAfter)).toEqual(["a", "a", "b", "a", "end"]);
    expect(stateAfter(undefined)).toBe("start");
  });

  it("says what was taken up to a point", () => {
    const { at, states, ways, last } = takenUpTo(TRAIL, 2);
    expect([at, [...states], [...ways], last]).toEqual([
      "b",
      ["start", "a", "b"],
      [wayKey("start", "a"), wayKey("a", "b")],
      wayKey("a", "b"),
    ]);
    expect(takenUpTo(TRAIL, 1)).toMatchObject({ at: "a", last: wayKey("start", "a") });
  });

  it("says why a run has given up", () => {
    expect(bailOut(TRAIL.at(-1))).toEqual({ reason: "timeout", message: "too long" });
    expect(bailOut({ from: "a", to: "end", event: { bail_out: "no" } })).toBeNull();
    expect(bailOut({ from: "a", to: "end", event: null })).toBeNull();
  });

  it("is forked behind the entry of the journal that has the point", () => {
    const kept = (place: string, value: unknown, state = "done"): CallEntry => ({
      place,
      value,
      state,
      what: "",
      type: "value",
    });
    const [, , second, third] = TRAIL;
    const entries = [
      kept("1", [0, {}]),
      kept("2/0/1", second), // within a state, as of a machine in a machine
      kept("2", second),
      kept("3/0/1", "answer"),
      kept("3", third),
      kept("4", TRAIL[4], "begun"),
    ];
    expect([0, 1, 2, 3].map((point) => forkAt(entries, point))).toEqual([0, 3, 5, null]);
  });
});
