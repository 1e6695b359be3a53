/** What all fields of one form share. */
import { createContext, useContext } from "react";
import type { Schema } from "../api/types";

export interface FormState {
  root: Schema;
  /** What is wrong, by path. */
  faults: ReadonlyMap<string, string>;
  id: string;
  disabled: boolean;
}

export const FormContext = createContext<FormState>({
  root: {},
  faults: new Map(),
  id: "form",
  disabled: false,
});

export const useForm = (): FormState => useContext(FormContext);

export interface FieldProps {
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  path: string;
  label: string;
  required: boolean;
  /** The label is only for those who hear it: what is asked stands above already. */
  quiet?: boolean;
}

/** A list or map without entries: left out, unless the server would then take what it had proposed. */
export const emptied = <T>({ required, schema }: FieldProps, empty: T): T | undefined =>
  required || (schema.default !== undefined && schema.default !== null) ? empty : undefined;

/** The ids that tie a control to its label, its description and its fault. */
export function useIds(
  path: string,
  hasHelp: boolean,
): { id: string; help: string; fault: string; describedBy?: string } {
  const { id: form, faults } = useForm();
  const id = `${form}-${path || "whole"}`;
  const help = `${id}-help`;
  const fault = `${id}-fault`;
  const describedBy = [hasHelp ? help : "", faults.has(path) ? fault : ""].filter(Boolean).join(" ");
  return { id, help, fault, ...(describedBy ? { describedBy } : {}) };
}
