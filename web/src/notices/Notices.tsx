/**
 * Tells of questions that wait: by their number in the title of the tab and, if the person wants that, by a
 * notification of the browser. That is off until it is clicked on, and remembered.
 */
import { type ReactNode, useEffect, useRef, useState } from "react";
import { waitingCalls } from "../api/calls";
import { go } from "../router";
import { announce } from "../ui/Announcer";
import { Icon } from "../ui/Icon";
import { newOnes, shortened, titled, type WaitingQuestion, waitingIn } from "./waiting";

const PLACE = "midcall.notify";
const POLL = 5000;

export default function Notices(): ReactNode {
  const [isOn, setOn] = useState(isWanted);
  const on = useRef(isOn);
  on.current = isOn;
  useWaiting((fresh) => {
    if (on.current && !document.hasFocus()) for (const one of fresh) tell(one);
  });
  if (!("Notification" in window)) return null;
  const toggle = async (): Promise<void> => {
    const granted = isOn || (await Notification.requestPermission()) === "granted";
    if (!granted) {
      announce("The browser does not allow notifications from this page");
      return;
    }
    remember(!isOn);
    setOn(!isOn);
    announce(isOn ? "Notifications are off" : "Notifications are on");
  };
  return (
    <button
      type="button"
      className="icon-button"
      aria-pressed={isOn}
      aria-label="Notify me of questions"
      title={isOn ? "Notifications are on" : "Notify me of questions"}
      onClick={() => void toggle()}
    >
      <Icon name="bell" className={isOn ? "icon-filled" : ""} />
    </button>
  );
}

/** Keep the number of questions in the title, and hand over those that are new. */
function useWaiting(onNew: (fresh: readonly WaitingQuestion[]) => void): void {
  const told = useRef(onNew);
  told.current = onNew;
  useEffect(() => {
    let known: ReadonlySet<string> | null = null;
    let count = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let current = true;
    const show = (): void => {
      const title = titled(document.title, count);
      if (title !== document.title) document.title = title;
    };
    const look = async (): Promise<void> => {
      clearTimeout(timer);
      try {
        const waiting = waitingIn(await waitingCalls());
        if (!current) return;
        told.current(newOnes(known, waiting));
        known = new Set(waiting.map((one) => one.id));
        count = waiting.length;
        show();
      } catch {
        // the pages tell of a server that is away, and ask for a key
      }
      if (current) timer = setTimeout(() => void look(), POLL);
    };
    // Each page sets its own title.
    const observer = new MutationObserver(show);
    const title = document.querySelector("title");
    if (title !== null) observer.observe(title, { childList: true, characterData: true, subtree: true });
    void look();
    return () => {
      current = false;
      clearTimeout(timer);
      observer.disconnect();
      count = 0;
      show();
    };
  }, []);
}

function tell({ id, method, message }: WaitingQuestion): void {
  try {
    const notice = new Notification("A question is waiting", {
      body: `${method}: ${shortened(message)}`,
      tag: id,
    });
    notice.onclick = () => {
      window.focus();
      go({ page: "calls" });
      notice.close();
    };
  } catch {
    // some browsers of phones have the name, but only for service workers
  }
}

function isWanted(): boolean {
  const isAllowed = "Notification" in window && Notification.permission === "granted";
  return isAllowed && localStorage.getItem(PLACE) === "on";
}

function remember(isOn: boolean): void {
  if (isOn) localStorage.setItem(PLACE, "on");
  else localStorage.removeItem(PLACE);
}
