"""Chats: a person who talks to the chat under a schedule of crashes, and what must be true of it afterwards.

The person does what a page does. The server has the truth: whenever it is not known how things stand (a line
was lost, a worker died), the conversation is read again, and gone on with from there. They answer what tools ask,
or say something else instead, or abort the tool; they hang up and read on elsewhere; they stop turns, and have
other conversations beside.

What must hold: whatever a request was acknowledged for (a response began) is never lost, and never asked or said
again; messages that were read once stay as they were, in their order; lines of a run say the same whenever they
are read; what tools gave is what was told, and what the ledger has; and in the end nothing runs.
"""

import http.client
import json
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct, field

from crash.app import SHORT, VARIANTS
from crash.person import LIMIT, Line
from crash.script import answer_to
from crash.stage import CHOICES, EARLY, IGNORED, Hung, Run, Schedule, Stage, Wrong, made_by, what_of
from midcall.models.base import Message

Plan = tuple[tuple[str, ...], ...]
"""What a message has the model do: for each of its answers, the wizards that it calls."""

PLANS: tuple[Plan, ...] = (
    (),
    *(((variant,),) for variant in (*VARIANTS, "picked", "picked")),
    (("line", "round"),),
    (("given_up", "hurried", "stream"),),
    (("beside",), ("raced",)),
)
SHOWN: dict[str, Any] = {"Sizes": {"size": "medium"}, "Look": {}}
"""What is answered to components."""
TICKS = 120
"""How many ticks a conversation has at most, about."""
PATIENCE = 100.0
"""Seconds after which a person who has not come to an end is hung."""
LAST = frozenset(("complete", "error", "conversation_state"))
"""The events with which a run ends."""
TRY_AGAIN = frozenset(("run_lost", "closing", "conflict"))
"""How a turn may fail: its worker died, or ends, or was taken for dead."""
REASON = "The person aborts it"
ENDED = ("Stopped by the person", "The person did not answer", REASON)
"""How the results of tool calls begin that a person has ended."""


class ChatSchedule(Schedule, frozen=True, kw_only=True):
    """What happens in a run."""

    talks: tuple[tuple[Plan, ...], ...] = (((("line",),),),)
    """The conversations, each with its messages."""
    agui: float = 0.0
    """How likely it is that a request goes over AG-UI."""
    drops: float = 0.0
    """How likely it is, after each line that is read, that the person hangs up."""
    stops: float = 0.0
    """How likely it is, after each line that is read, that the person stops the turn."""
    instead: float = 0.0
    """How likely it is that the person does not answer, but says the next thing."""
    aborts: float = 0.0
    """How likely it is that the person does not answer, but ends the tool call."""
    deletes: float = 0.0
    """How likely it is, each time that the person looks, that they delete the conversation."""

    def run(self, stage: Stage, name: str, folder: Path) -> "ChatRun":
        return ChatRun(stage, self, name, folder)


def chat_schedule(seed: int) -> ChatSchedule:
    """Any schedule, always the same for the same seed."""
    chance = random.Random(seed)
    workers = chance.choice((1, 1, 2, 3))
    sizes = chance.choice(((1,), (2,), (3,), (1, 2), (2, 1)))
    return ChatSchedule(
        talks=tuple(tuple(chance.choice(PLANS) for _ in range(size)) for size in sizes),
        deaths=tuple(chance.randint(1, TICKS) for _ in range(chance.choice((1, 2, 2, 3)))),
        workers=workers,
        roams=workers > 1 and chance.random() < 0.7,
        partly=chance.random() < 0.3,
        forgetful=chance.random() < 0.3,
        ignores=chance.random() < 0.6,
        breaks=tuple(chance.choice(("stay", "stay", "kill", "leave")) for _ in range(3)),
        agui=chance.choice((0.0, 0.0, 0.5)),
        drops=chance.choice((0.0, 0.1)),
        stops=chance.choice((0.0, 0.0, 0.03)),
        instead=chance.choice((0.0, 0.0, 0.2)),
        aborts=chance.choice((0.0, 0.0, 0.2)),
        deletes=chance.choice((0.0, 0.0, 0.05)),
        seed=seed,
    )


class Talk(Struct):
    """A conversation, as its person knows it."""

    label: str
    plans: list[Plan]
    """What is still to be said."""
    id: str | None = None
    sent: list[tuple[str, str]] = []
    """The ids and texts of messages: all that were sent, the last of which may have been lost."""
    said: set[str] = field(default_factory=set)
    """Those of which the request was acknowledged, by their ids."""
    messages: list[Any] = []
    """All that was read."""
    asked: dict[str, dict[str, str]] = {}
    """What calls have asked, by their ids and the first words of the questions."""
    answered: set[tuple[str, str]] = field(default_factory=set)
    """The questions that were answered; perhaps the answer was lost."""
    over: set[tuple[str, str]] = field(default_factory=set)
    """Those of which the answer was acknowledged: they are asked no more."""
    results: dict[str, str] = {}
    """What calls have given, as the lines told."""
    lines: dict[str, list[bytes]] = {}
    """The lines that were read of each run."""
    ended: set[str] = field(default_factory=set)
    """The messages whose turns the person has stopped, or tried to."""
    ignored: int = 0
    deleted: bool = False
    """Whether the person has deleted it, or tried to."""
    done: bool = False

    @property
    def newest(self) -> str:
        """The id of the message that was sent last."""
        return self.sent[-1][0] if self.sent else ""


class Died(Exception):
    """The worker did not live to answer."""


class ChatRun(Run):
    """A person, and what they say."""

    chat = True

    def __init__(self, stage: Stage, schedule: ChatSchedule, name: str, folder: Path) -> None:
        super().__init__(stage, schedule, name, folder)
        self._schedule = schedule
        self._talks = [
            Talk(f"{self.name} talk {number}", list(plans)) for number, plans in enumerate(schedule.talks)
        ]

    def play(self) -> None:
        end = time.monotonic() + PATIENCE
        while going := [talk for talk in self._talks if not talk.done]:
            if time.monotonic() > end:
                raise Hung(f"the conversations have not come to their end: {going}")
            try:
                self._step(self.chance.choice(going))
            except Died as died:
                self.note(str(died))

    def _step(self, talk: Talk) -> None:
        """Look how things stand, and do what is next."""
        if talk.deleted or (talk.id and talk.said and self.chance.random() < self._schedule.deletes):
            self._delete(talk)
            return
        found = self._look(talk)
        if found["run"] is not None:
            run = found["run"]["sessionId"]
            seen = len(talk.lines.get(run, ()))
            self._attach(talk, run, self.chance.choice((seen, seen, 0, min(seen, found["run"]["lsn"]))))
            return
        self.maybe_break()
        if talk.sent and talk.newest not in talk.said | _ids(found):
            self._post(talk, talk.sent[-1])  # it did not arrive
        elif found["pending"]:
            self._act(talk, found["pending"])
        elif found["cutOff"]:
            self._post(talk, resume=True)
        elif not _is_answered(found) and talk.newest not in talk.ended:
            raise Hung(f"nobody answers, and no run is under way: {found}")
        elif talk.plans:
            self._say_next(talk)
        else:
            talk.done = True

    # --- what the person does ----------------------------------------------------------------

    def _say_next(self, talk: Talk) -> None:
        number, plan = len(talk.sent), talk.plans.pop(0)
        label = f"{talk.label} message {number}"
        rounds = [
            [
                (tool, {"run": f"{label} call {at}.{place}", "ledger": str(self.ledger)})
                for place, tool in enumerate(tools)
            ]
            for at, tools in enumerate(plan)
        ]
        talk.sent.append((f"m{number}", f"{label} plan {json.dumps(rounds)}"))
        self._post(talk, talk.sent[-1])

    def _act(self, talk: Talk, pending: list[Any]) -> None:
        """Do something about what tools ask."""
        if talk.plans and self.chance.random() < self._schedule.instead:
            talk.ended.add(talk.newest)
            self._say_next(talk)
            return
        if self.chance.random() < self._schedule.aborts:
            talk.ended.add(talk.newest)
            session = self.chance.choice(pending)["sessionId"]
            self._post(talk, pluginAbort={"sessionId": session, "reason": REASON})
            return
        answers = [one for one in pending if what_of(one["message"]) != EARLY]
        if self._schedule.ignores and talk.ignored < IGNORED and len(answers) < len(pending):
            talk.ignored += 1
        else:
            answers = pending
        if self._schedule.partly and answers:
            answers = [self.chance.choice(answers)]
        if answers:
            talk.answered |= {_question(one) for one in answers}
            self._post(talk, answers=answers)
        else:
            time.sleep(SHORT / 10)
            self._post(talk, resume=True)  # to see whether it is still asked

    def _stop(self, talk: Talk) -> None:
        talk.ended.add(talk.newest)
        told = self._json("POST", "/chat/stop", {"conversationId": talk.id})
        self.note(f"stop: {told}")

    def _delete(self, talk: Talk) -> None:
        again, talk.deleted = talk.deleted, True
        with self._request("DELETE", f"/chat/conversations/{talk.id}") as response:
            told = response.read().decode()
            if response.status == 204 or (response.status == 404 and again):
                talk.done = True
            elif response.status != 409:
                raise Wrong(f"the conversation is not deleted: {told}")

    # --- requests ----------------------------------------------------------------------------

    def _post(
        self,
        talk: Talk,
        said: tuple[str, str] | None = None,
        *,
        answers: list[Any] | None = None,
        **body: Any,
    ) -> None:
        """Begin a turn, over any wire, and read it to its end or until the person hangs up."""
        answers = answers or []
        agui = not body.get("pluginAbort") and self.chance.random() < self._schedule.agui
        if agui:
            talk.id = talk.id or str(uuid.uuid4())
            path, body = "/agui", _for_agui(talk.id, said, answers)
        else:
            path, body = "/chat", {**body, **_for_chat(talk.id, said, answers)}
        with self._request("POST", path, body) as response:
            if response.status == 409:
                self.note(f"busy: {response.read().decode()}")
                time.sleep(SHORT)
                return
            if response.status != 200:
                raise Wrong(f"{body} is refused: {response.read().decode()}")
            talk.over |= {_question(one) for one in answers}
            if said is not None:
                talk.said.add(said[0])
            if agui:
                self._read_agui(talk, response)
            else:
                self._read(talk, response, 0)

    def _attach(self, talk: Talk, run: str, after: int) -> None:
        with self._request("GET", f"/chat?sessionId={run}&lastLsn={after}") as response:
            if response.status != 200:
                raise Wrong(f"the run cannot be read: {response.read().decode()}")
            self._read(talk, response, after)

    def _look(self, talk: Talk, line: Line | None = None) -> Any:
        """The conversation, which has all that was acknowledged and read before."""
        nothing = {"messages": [], "pending": [], "run": None, "cutOff": False}
        if talk.id is None and talk.sent:
            listed = self._json("GET", "/chat/conversations")["conversations"]
            mine = [one["id"] for one in listed if one["title"].startswith(talk.label)]
            if len(mine) > 1:
                raise Wrong(f"what was said once is in {mine}")
            talk.id = mine[0] if mine else None
        if talk.id is None:
            return nothing
        with self._request("GET", f"/chat/conversations/{talk.id}", line=line) as response:
            found = json.loads(response.read())
            if (
                response.status == 404 and not talk.said
            ):  # its id is the person's, and what they said was lost
                talk.id = None
                return nothing
            if response.status != 200:
                raise Wrong(f"the conversation cannot be read: {found}")
        self._check_messages(talk, found["messages"])
        missing = talk.said - _ids(found)
        if missing and found["run"] is None and not found["cutOff"]:
            raise Wrong(f"{missing} was said, and is not in {found}")
        for one in found["pending"]:
            self._hear_question(talk, one)
        return found

    def _json(self, verb: str, path: str, body: Any = None) -> Any:
        with self._request(verb, path, body) as response:
            told = json.loads(response.read())
            if response.status != 200:
                raise Wrong(f"{path} is refused: {told}")
            return told

    def _request(self, verb: str, path: str, body: Any = None, line: Line | None = None) -> "Response":
        line = line or self.worker()
        self.note(f"{line.pid} <- {verb} {path} {'' if body is None else _short(body)}")
        return Response(line, verb, path, body)

    # --- what is read ------------------------------------------------------------------------

    def _read(self, talk: Talk, response: "Response", after: int) -> None:
        """Read lines that begin after a number."""
        run = response.header("x-session-id")
        seen = talk.lines.setdefault(run, [])
        for text in response:
            after += 1
            line = json.loads(text)
            event = line["event"]
            if line["lsn"] != after:
                raise Wrong(f"line {line['lsn']} comes as the line {after}")
            if after > len(seen):
                seen.append(text)
                self._hear(talk, event)
            elif seen[after - 1] != text and not _is_lost(event):
                raise Wrong(f"line {after} of the run is {text!r}, and was {seen[after - 1]!r}")
            self.note(f"  {after} {_short(event)}")
            if event["type"] in LAST:
                continue  # to the end of the response
            if self.chance.random() < self._schedule.drops:
                self.note("hangs up")
                return
            if self.chance.random() < self._schedule.stops:
                self._stop(talk)

    def _hear(self, talk: Talk, event: Any) -> None:
        match event["type"]:
            case "session_info":
                if talk.id not in (None, event["conversationId"]):
                    raise Wrong(f"the run is of the conversation {event['conversationId']}")
                talk.id = event["conversationId"]
            case "tool_result":
                self._hear_result(talk, event["callId"], event["content"])
            case "tool_error":
                self._hear_result(talk, event["callId"], f"Error: {event['message']}")
            case "plugin_elicit_request":
                self._hear_question(talk, event)
            case "plugin_session_error" if EARLY not in talk.asked.get(event["callId"], {}):
                raise Wrong(f"an answer was not taken: {event}")
            case "conversation_state":
                self._check_messages(talk, event["messages"], longer=False)
            case "complete" if event["reason"] == "stopped" and talk.newest not in talk.ended:
                raise Wrong("nobody has stopped it")
            case "error" if event["code"] not in TRY_AGAIN:
                raise Wrong(f"the turn failed: {event}")

    def _read_agui(self, talk: Talk, response: "Response") -> None:
        ended = False
        for text in response:
            if not text.startswith(b"data: "):
                continue
            event = json.loads(text[6:])
            if ended:
                raise Wrong(f"{event} comes after the end of the run")
            self.note(f"  {_short(event)}")
            match event["type"]:
                case "TOOL_CALL_RESULT":
                    self._hear_result(talk, event["toolCallId"], event["content"])
                case "RUN_FINISHED":
                    ended = True
                case "RUN_ERROR" if event["code"] not in TRY_AGAIN:
                    raise Wrong(f"the run failed: {event}")
                case "RUN_ERROR":
                    ended = True
            if not ended and self.chance.random() < self._schedule.drops:
                self.note("hangs up")
                return

    def _hear_question(self, talk: Talk, asked: Any) -> None:
        call_id, what = _question(asked)
        before = talk.asked.setdefault(call_id, {}).setdefault(what, asked["message"])
        if before != asked["message"]:
            raise Wrong(f"asked {asked['message']}, and before {before}")
        if (call_id, what) in talk.over:
            raise Wrong(f"asked {asked['message']} again, though it was answered")

    def _hear_result(self, talk: Talk, call_id: str, content: str) -> None:
        if talk.results.setdefault(call_id, content) != content:
            raise Wrong(f"{call_id} gave {content}, and before {talk.results[call_id]}")

    def _check_messages(self, talk: Talk, messages: list[Any], *, longer: bool = True) -> None:
        """What was read before is there, as it was; a line may tell of an earlier time than the person knows."""
        shared = min(len(messages), len(talk.messages))
        if messages[:shared] != talk.messages[:shared] or (longer and shared < len(talk.messages)):
            raise Wrong(f"the messages are {messages}, and were {talk.messages}")
        if len(messages) > shared:
            talk.messages = messages

    # --- what must be true -------------------------------------------------------------------

    def check(self) -> None:
        workers = self.calm()
        kept = [talk for talk in self._talks if not talk.deleted]
        for talk in kept:
            for line in workers:
                found = self._look(talk, line)
                if found["run"] or found["pending"] or found["cutOff"] or found["messages"] != talk.messages:
                    raise Wrong(f"in the end the conversation is {found}, and was {talk.messages}")
            for run, seen in talk.lines.items():
                self._check_lines(run, seen)
        statuses: dict[str, list[str]] = {}
        for call in self.settled_calls():
            statuses.setdefault(call["run"], []).append(call["status"])
        for talk in kept:
            self._check_talk(talk, statuses)
        for talk in self._talks:
            if talk.deleted:
                self._check_deleted(talk, statuses)
        unknown = {line["run"] for line in self.effects()} - statuses.keys()
        if unknown:
            raise Wrong(f"{unknown} had effects, and is not known")

    def _check_lines(self, run: str, seen: list[bytes]) -> None:
        """All lines from the first on are those that were read, but for those that died with their worker."""
        with self._request("GET", f"/chat?sessionId={run}&lastLsn=0") as response:
            again = list(response)
        lost = bool(again) and _is_lost(json.loads(again[-1])["event"])
        if lost:
            del again[-1]
        shared = min(len(again), len(seen))
        if again[:shared] != seen[:shared] or (len(again) < len(seen) and not lost):
            raise Wrong(f"the lines are {again}, and were {seen}")

    def _check_talk(self, talk: Talk, statuses: dict[str, list[str]]) -> None:
        """The conversation is the one that follows from what was said and what tools gave."""
        said = [(one.get("extra", {}).get("id"), one["content"]) for one in talk.messages if _is(one, "user")]
        if said != talk.sent:
            raise Wrong(f"said was {talk.sent}, and the conversation has {said}")
        messages = [msgspec.convert(one, Message) for one in talk.messages]
        runs: dict[str, str] = {}
        ended = False
        for at, message in enumerate(messages):
            match message.role:
                case "user":
                    ended = (message.extra or {}).get("id") in talk.ended
                case "assistant":
                    parts, calls = answer_to(messages[:at])
                    whole = message.content == "".join(parts) and len(calls) == len(message.tool_calls)
                    if not whole and not (ended and "".join(parts).startswith(message.content)):
                        raise Wrong(f"the model said {message}, and should have said {parts}, {calls}")
                    for call, (_, arguments) in zip(message.tool_calls, calls, strict=False):
                        if call.read_arguments() != arguments or call.id in runs:
                            raise Wrong(f"the model called {call}, and should have called {arguments}")
                        runs[call.id] = arguments["run"]
        results = [message for message in messages if message.role == "tool"]
        if sorted(str(one.tool_call_id) for one in results) != sorted(runs):
            raise Wrong(f"the results are {results}, and the calls {runs}")
        for message in results:
            call_id = str(message.tool_call_id)
            if talk.results.get(call_id, message.content) != message.content:
                raise Wrong(f"{call_id} gave {talk.results[call_id]}, and the conversation has {message}")
            self._check_call(talk, call_id, runs[call_id], message, statuses.get(runs[call_id], []))

    def _check_deleted(self, talk: Talk, statuses: dict[str, list[str]]) -> None:
        """Nothing of a conversation is left, and nothing of it waits."""
        paths = [f"/chat/conversations/{talk.id}", *(f"/chat?sessionId={run}" for run in talk.lines)]
        for path in paths:
            for line in self.workers:
                with self._request("GET", path, line=line) as response:
                    if response.status != 404:
                        raise Wrong(f"{path} is deleted, and is {response.read().decode()}")
        for run, found in statuses.items():
            if run.startswith(f"{talk.label} "):
                self.check_effects(run)
                if found not in (["aborted"], ["completed"]):
                    raise Wrong(f"a call of a conversation that was deleted is {found}")

    def _check_call(self, talk: Talk, call_id: str, run: str, result: Message, statuses: list[str]) -> None:
        self.check_effects(run)
        if result.is_error:
            if not any(f"Error: {how}" in result.content for how in ENDED) or not talk.ended:
                raise Wrong(f"a call failed: {result}")
            if statuses not in ([], ["aborted"], ["completed"]):
                raise Wrong(f"a call that was ended is {statuses}")
            return
        answered = {what for id, what in talk.answered if id == call_id}
        self.check_steps(run, made_by(json.loads(result.content), talk.asked[call_id], answered))
        if statuses != ["completed"]:
            raise Wrong(f"a call that has a result is {statuses}")


class Response:
    """What a worker answers. Raises `Died` where it does not live to."""

    def __init__(self, line: Line, verb: str, path: str, body: Any) -> None:
        self._line = line
        self._connection = http.client.HTTPConnection("127.0.0.1", line.port or 0, timeout=LIMIT)
        headers = {"Connection": "close"} | ({} if body is None else {"Content-Type": "application/json"})
        try:
            self._connection.request(verb, path, None if body is None else json.dumps(body), headers)
            self._response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._died(error) from None
        self.status = self._response.status

    def header(self, name: str) -> str:
        return self._response.headers[name]

    def read(self) -> bytes:
        try:
            return self._response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._died(error) from None

    def __iter__(self) -> Iterator[bytes]:
        """The lines that come whole."""
        try:
            for line in self._response:
                if line.endswith(b"\n"):
                    yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._died(error) from None

    def _died(self, error: Exception) -> Exception:
        self._connection.close()
        if isinstance(error, TimeoutError):
            return Hung(f"worker {self._line.pid} has not answered for {LIMIT:.0f} s")
        self._line.wait_for_end()
        return Died(f"{self._line.pid} died: {error!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _for_chat(id: str | None, said: tuple[str, str] | None, answers: list[Any]) -> dict[str, Any]:
    """The body of a request to `/chat`."""
    body: dict[str, Any] = {} if id is None else {"conversationId": id}
    if said is not None:
        body |= {"messageId": said[0], "message": said[1]}
    if answers:
        wanted = ("sessionId", "callId", "elicitId")
        body["pluginElicitResponses"] = [
            {key: one[key] for key in wanted} | {"result": {"action": "accept", "content": _content(one)}}
            for one in answers
        ]
    return body


def _for_agui(id: str, said: tuple[str, str] | None, answers: list[Any]) -> dict[str, Any]:
    """The body of a request to `/agui`, which goes on with the thread if it has nothing to say."""
    body: dict[str, Any] = {"threadId": id, "runId": str(uuid.uuid4())}
    if said is not None:
        body["messages"] = [{"role": "user", "id": said[0], "content": said[1]}]
    body["resume"] = [
        {"interruptId": one["elicitId"], "status": "resolved", "payload": _content(one)} for one in answers
    ]
    return body


def _content(asked: Any) -> Any:
    shown = asked.get("component")
    return CHOICES[what_of(asked["message"])] if shown is None else SHOWN[shown["name"]]


def _question(asked: Any) -> tuple[str, str]:
    """Which question of which call it is; one that a plugin shows has a component after the other."""
    what, shown = what_of(asked["message"]), asked.get("component")
    return asked["callId"], what if shown is None else f"{what} {shown['name']}"


def _is(message: Any, role: str) -> bool:
    return bool(message["role"] == role)


def _ids(found: Any) -> set[str]:
    return {one.get("extra", {}).get("id", "") for one in found["messages"] if _is(one, "user")}


def _is_answered(found: Any) -> bool:
    """Whether it is the person's turn."""
    messages = found["messages"]
    return not messages or (_is(messages[-1], "assistant") and not messages[-1].get("tool_calls"))


def _is_lost(event: Any) -> bool:
    return bool(event["type"] == "error" and event["code"] == "run_lost")


def _short(value: Any) -> str:
    return json.dumps(value)[:300]
