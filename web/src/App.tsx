/** The frame around the pages: where to go, and how it looks. The chat is there at once, the others when they are wanted. */
import { Component, lazy, type ReactNode, Suspense, useCallback, useEffect, useRef, useState } from "react";
import { Unreachable } from "./api/http";
import { hasPage } from "./base";
import { ChatPage } from "./chat/ChatPage";
import { KeyDialog } from "./KeyDialog";
import { Link, type Place, usePlace } from "./router";
import { Announcer } from "./ui/Announcer";
import { Icon, type IconName, Sign } from "./ui/Icon";
import { type Theme, useTheme } from "./ui/theme";

/** A page that is loaded when it is wanted; a browser only says of it that a module has failed. */
const paged: typeof lazy = (load) =>
  lazy(() =>
    load().catch(() => {
      throw new Unreachable();
    }),
  );

const ToolsPage = paged(() => import("./tools/ToolsPage"));
const CallsPage = paged(() => import("./calls/CallsPage"));
const ResourcesPage = paged(() => import("./resources/ResourcesPage"));
const Notices = lazy(() => import("./notices/Notices").catch(() => ({ default: () => null })));
const QuestionPage = paged(() => import("./questions/QuestionPage"));
const MachinesPage = paged(() => import("./machines/MachinesPage"));

const THEMES: Record<Theme, { icon: IconName; text: string }> = {
  system: { icon: "system", text: "as the system" },
  light: { icon: "sun", text: "light" },
  dark: { icon: "moon", text: "dark" },
};

export function App(): ReactNode {
  const place = usePlace();
  const [drawer, setDrawer] = useState(false);
  const closeDrawer = useCallback(() => setDrawer(false), []);
  const { theme, next, change } = useTheme();
  // Whoever comes back from another page finds what was open: the conversation, the method with its runs.
  const last = useRef<Partial<Record<Place["page"], Place>>>({});
  useEffect(() => {
    last.current[place.page] = place;
  });
  const to = (root: Place): Place => (place.page === root.page ? root : (last.current[root.page] ?? root));
  const toChat = place.page === "chat" ? place : to({ page: "chat", conversation: null });
  return (
    <div className="app">
      <a className="skip" href="#main">
        Skip to the content
      </a>
      <header className="top">
        {place.page === "chat" && (
          <button
            type="button"
            className="icon-button top-menu"
            aria-label="Conversations"
            aria-expanded={drawer}
            aria-controls="conversations"
            onClick={() => setDrawer(!drawer)}
          >
            <Icon name="menu" />
          </button>
        )}
        <Link to={toChat} className="brand" aria-label="midcall, chat">
          <Sign />
          <span>midcall</span>
        </Link>
        {place.page !== "question" && (
          <>
            <Pages place={place} toChat={toChat} to={to} />
            <Suspense fallback={null}>
              <Notices />
            </Suspense>
          </>
        )}
        <button
          type="button"
          className="icon-button"
          aria-label={`Colours: ${THEMES[theme].text}. Change to ${THEMES[next].text}`}
          title={`Colours: ${THEMES[theme].text}`}
          onClick={change}
        >
          <Icon name={THEMES[theme].icon} />
        </button>
      </header>
      <Whole key={place.page}>
        <Suspense fallback={<main className="page-loading" id="main" aria-busy="true" />}>
          {place.page === "chat" && (
            <ChatPage conversation={place.conversation} drawer={drawer} onDrawerClose={closeDrawer} />
          )}
          {place.page === "tools" && <ToolsPage method={place.method} />}
          {place.page === "resources" && <ResourcesPage place={place} />}
          {place.page === "calls" && <CallsPage />}
          {place.page === "unknown" && <NotFound />}
          {place.page === "question" && <QuestionPage key={place.token} token={place.token} />}
          {place.page === "machines" && <MachinesPage machine={place.machine} run={place.run} />}
        </Suspense>
      </Whole>
      <KeyDialog />
      <Announcer />
    </div>
  );
}

function NotFound(): ReactNode {
  useEffect(() => {
    document.title = "Not found · midcall";
  }, []);
  return (
    <main className="empty" id="main">
      <Icon name="question" />
      <h1>Page not found</h1>
      <p>There is nothing at this address.</p>
      <Link to={{ page: "chat", conversation: null }} className="button">
        Go to the chat
      </Link>
    </main>
  );
}

function Pages(props: { place: Place; toChat: Place; to: (root: Place) => Place }): ReactNode {
  const { place, toChat, to } = props;
  return (
    <nav className="top-nav" aria-label="Pages">
      <Page to={toChat} current={place.page === "chat"} icon="chat" name="Chat" />
      <Page
        to={to({ page: "tools", method: null })}
        current={place.page === "tools"}
        icon="tool"
        name="Tools"
      />
      <Page
        to={to({ page: "resources", uri: null, template: null, prompt: null })}
        current={place.page === "resources"}
        icon="book"
        name="Resources"
      />
      {hasPage("machines") && (
        <Page
          to={to({ page: "machines", machine: null, run: null })}
          current={place.page === "machines"}
          icon="machine"
          name="Machines"
        />
      )}
      <Page to={{ page: "calls" }} current={place.page === "calls"} icon="calls" name="Calls" />
    </nav>
  );
}

function Page(props: { to: Place; current: boolean; icon: IconName; name: string }): ReactNode {
  return (
    <Link to={props.to} className="top-link" aria-current={props.current ? "page" : undefined}>
      <Icon name={props.icon} />
      <span>{props.name}</span>
    </Link>
  );
}

/** A page that fails says so, with a way out, instead of leaving nothing. */
class Whole extends Component<{ children: ReactNode }, { failure: string | null }> {
  override state = { failure: null as string | null };

  static getDerivedStateFromError(error: unknown): { failure: string } {
    return { failure: error instanceof Error ? error.message : String(error) };
  }

  override render(): ReactNode {
    if (this.state.failure === null) return this.props.children;
    return (
      <main className="empty" id="main" role="alert">
        <Icon name="alert" />
        <p>Something went wrong: {this.state.failure}</p>
        <button type="button" className="button" onClick={() => location.reload()}>
          Reload
        </button>
      </main>
    );
  }
}
