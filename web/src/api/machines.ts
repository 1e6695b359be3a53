/** The machines of this hub, and their runs. */
import { type Machine, readMachine } from "../machines/machine";
import { get } from "./http";

export interface MachineSummary {
  id: string;
  description: string;
  /** The method that runs it. */
  method: string;
}

export const listMachines = async (): Promise<MachineSummary[]> =>
  (await get<{ machines: MachineSummary[] }>("fsm")).machines;

export const getMachine = async (id: string): Promise<Machine> =>
  readMachine(await get<Machine>(`fsm/${encodeURIComponent(id)}`));

/** Start a run, which goes on by itself. Gives the id of its call. Raises `Refused` with what does not fit. */
export const startRun = async (id: string, input: unknown): Promise<string> => {
  const headers = { Prefer: "respond-async" };
  const path = `fsm/${encodeURIComponent(id)}/run`;
  return (await get<{ call: string }>(path, { method: "POST", body: input, headers })).call;
};
