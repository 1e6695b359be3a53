"""`midcall call` in a real pseudo-terminal, used as a person would."""

import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from command_line import CANCELLED, NOT_ANSWERED, SUCCESS
from driving import LIMIT
from terminals import CTRL_C, CTRL_D, DOWN, ENTER, Session, midcall, terminal

# Python 3.12 and later warn of a fork beside threads; the child does nothing but start Python.
pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")


def call(*argv: str) -> AbstractContextManager[Session]:
    return midcall("call", "cli_app:hub", *argv)


# --- kinds of question ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "result"), [("y", '"deleted"'), ("n", '"cancelled"'), (ENTER, '"cancelled"')]
)
def test_a_confirmation_is_answered_with_one_key_and_enter_alone_is_no_yes(key: str, result: str) -> None:
    with call("files.delete", "--ids", "a") as session:
        session.sees("Delete 1 items?", "(y/N)")
        session.types(key)
        session.sees(result)
        assert session.ends() == SUCCESS


def test_a_prompt_starts_with_its_default() -> None:
    with call("talk.prompt") as session:
        session.sees("Your name?", "Ada")
        session.types(" Lovelace" + ENTER)
        session.sees("Hello Ada Lovelace")
        assert session.ends() == SUCCESS


def test_one_is_selected_with_arrow_keys_and_descriptions_are_shown() -> None:
    with call("talk.select") as session:
        session.sees("Template?", "Minimal", "Full", "One file")
        session.types(DOWN + ENTER)
        session.sees("took full")
        assert session.ends() == SUCCESS


def test_several_are_selected_with_space() -> None:
    with call("talk.toppings") as session:
        session.sees("Toppings?", "kale")
        session.types(" " + DOWN + DOWN + " " + ENTER)
        session.sees('["ham", "kale"]')
        assert session.ends() == SUCCESS


def test_none_of_several_may_be_selected() -> None:
    with call("talk.toppings") as session:
        session.sees("Toppings?", "kale")
        session.types(ENTER)
        session.sees("[]")
        assert session.ends() == SUCCESS


def test_a_form_is_asked_field_by_field_and_again_when_it_does_not_fit() -> None:
    with call("talk.visitor") as session:
        session.sees("Who comes to see us.", "name (as on the door)")
        session.types("Bob" + ENTER)
        session.sees("age")
        session.types("x" + ENTER)
        session.sees("This is not a whole number")
        session.types("\b7" + ENTER)
        session.sees("badge", "red", "blue")
        session.types(DOWN + ENTER)
        session.sees("news", "(y/N)")
        session.types("y")
        session.sees("Wrong answer: expected", "age", "greater than or equal to 18")
        session.sees("name (as on the door)", "Bob")
        session.types(ENTER)
        session.sees("age", "7")
        session.types("\b18" + ENTER)
        session.sees("badge", "blue")
        session.types(ENTER)
        session.sees("news", "(Y/n)")
        session.types(ENTER)
        session.sees('{"name": "Bob", "age": 18, "badge": "blue", "news": true}')
        assert session.ends() == SUCCESS


def test_lists_that_were_entered_are_kept_when_the_form_is_asked_again() -> None:
    with call("talk.party") as session:
        session.sees("hosts", '["Lovelace, Ada","Bob"]')
        session.types(ENTER)
        session.sees("way", "10")
        session.types(ENTER)
        session.sees("Add one to guests?")
        session.types("y")
        session.sees("guests.1.name")
        session.types("Ann" + ENTER)
        session.sees("Add another to guests?")
        session.types("n")
        session.sees("plates")
        session.types("0" + ENTER)
        session.sees("Wrong answer: expected", "hosts", '["Lovelace, Ada","Bob"]')
        session.types(ENTER)
        session.sees("way", "10")
        session.types(ENTER)
        session.sees("Keep the 1 that guests has?", "(Y/n)")
        session.types(ENTER)
        session.sees("Add another to guests?")
        session.types("n")
        session.sees("plates", "0")
        session.types("\b3" + ENTER)
        session.sees('"Lovelace, Ada"', '"way": "10\\u00a0km"', '"Ann"', '"plates": 3')
        assert session.ends() == SUCCESS


def test_what_is_too_long_for_a_line_of_a_choice_goes_on_in_the_next() -> None:
    with call("talk.long") as session:
        session.sees("Which?", "word39", "short", "indeed")
        session.types(ENTER)
        assert session.ends() == SUCCESS


def test_what_may_be_left_out_of_a_form_is_left_out_with_a_key() -> None:
    with call("talk.order") as session:
        session.sees("note", "string or null, may be empty")
        session.types(ENTER)
        session.sees("plates", "integer or null, may be empty")
        session.types(ENTER)
        session.sees("first", "ham", "egg", "» (leave out)")
        session.types(ENTER)
        session.sees("toppings", "ham", "egg")
        session.types(" " + ENTER)
        session.sees("gift", "yes", "no", "» (leave out)")
        session.types(ENTER)
        session.sees("urgent", "yes", "no", "» (leave out)")
        session.types(DOWN + DOWN + ENTER)
        session.sees("at", "time, as in 16:30")
        session.types("26:30" + ENTER)
        session.sees("This is not a time")
        session.types("\b" * 5 + "16:30" + ENTER)
        session.sees("price", "number or null")
        session.types("1.50" + ENTER)
        session.sees(
            '"note": null', '"plates": null', '"first": null', '"ham"', '"gift": null', '"urgent": false'
        )
        session.sees('"at": "16:30:00"', '"price": "1.50"')
        assert session.ends() == SUCCESS


def test_a_page_is_shown_and_a_person_says_when_they_have_been_there() -> None:
    with call("talk.page") as session:
        session.sees("Please sign in", "https://example.com/login", "Done?")
        session.types("y")
        session.sees("welcome")
        assert session.ends() == SUCCESS


def test_a_question_of_ones_own_is_answered_in_json_and_again_when_it_is_wrong() -> None:
    with call("talk.seat") as session:
        session.sees('"rows"', "Which seat?", "JSON, {row: integer}")
        session.types("row 11" + ENTER)
        session.sees("This is not JSON")
        session.types("\b" * 6 + '{"row": "x"}' + ENTER)
        session.sees("Wrong answer: expected a value that fits the schema", "Which seat?")
        session.types('{"row": 11}' + ENTER)
        session.sees('{"row": 11}\n{"row": 11}\n')
        assert session.ends() == SUCCESS


def test_a_model_is_not_looked_for_in_a_terminal() -> None:
    with call("talk.sample") as session:
        session.sees("Not answered: This caller cannot answer a question of kind sample")
        assert session.ends() == NOT_ANSWERED


# --- several at once, and what was answered beforehand --------------------------------------


def test_the_most_urgent_question_is_asked_first_and_one_at_a_time() -> None:
    with call("talk.several") as session:
        session.sees("An urgent one?")
        assert "calm" not in session.text
        session.types("now" + ENTER)
        session.sees("A calm question?")
        session.types("later" + ENTER)
        session.sees('{"calm": "later", "urgent": "now"}')
        assert session.ends() == SUCCESS


def test_a_question_with_an_answer_beforehand_is_not_asked() -> None:
    with call("talk.several", "--answer", "urgent=now") as session:
        session.sees("? An urgent one? now [--answer]", "A calm question?")
        session.types("later" + ENTER)
        session.sees('{"calm": "later", "urgent": "now"}')
        assert session.ends() == SUCCESS


def test_an_answer_beforehand_that_does_not_fit_is_asked_for() -> None:
    with call("talk.select", "--answer", "template=huge") as session:
        session.sees("Wrong answer: expected one of full, min", "(Use arrow keys)")
        session.types(ENTER)
        session.sees("took min")
        assert session.ends() == SUCCESS


def test_yes_works_in_a_terminal_too() -> None:
    with call("files.delete", "--ids", "a", "--yes") as session:
        session.sees("? Delete 1 items? yes [--yes]", '"deleted"')
        assert session.ends() == SUCCESS


def test_json_in_a_terminal_still_asks() -> None:
    with call("files.delete", "--ids", "a", "--json") as session:
        session.sees('"type":"request"', "(y/N)")
        session.types("y")
        session.sees('"type":"data"', '"type":"done"')
        assert session.ends() == SUCCESS


# --- time, withdrawal, Ctrl-C ---------------------------------------------------------------


TIMES = ("0.5", "5", "50")
"""Seconds, of which the first are taken that are enough for a prompt to be drawn."""


def test_a_timed_out_question_closes_the_prompt_and_exits_with_4() -> None:
    for seconds in TIMES:
        with call("talk.impatient", "--seconds", seconds) as session:
            session.sees("Quick, your name?")
            drawn = "withdrawn" not in session.text
            session.types("Bo")
            if drawn:
                session.sees("Question withdrawn, timed out: Quick, your name?")
            session.sees("Not answered: Nobody answered in time")
            assert session.ends() == NOT_ANSWERED
        if drawn:
            return
    raise AssertionError(session.text)


def test_a_timed_out_question_exits_with_4_even_if_the_tool_lives_with_it() -> None:
    with call("talk.impatient", "--handled") as session:
        session.sees("Question withdrawn, timed out", "never mind")
        assert session.ends() == NOT_ANSWERED


def test_the_default_time_limit_is_set_by_an_option() -> None:
    for seconds in TIMES:
        with call("talk.prompt", "--timeout", seconds) as session:
            session.sees("Question withdrawn, timed out: Your name?")
            assert session.ends() == NOT_ANSWERED
        if session.text.count("Your name?") > 1:
            return
    raise AssertionError(session.text)


def test_a_person_has_as_long_as_it_takes_unless_the_tool_says_otherwise() -> None:
    for method, limited in (("talk.prompt", False), ("talk.impatient", True)):
        with call(method, "--json") as session:
            session.sees('"type":"request"')
            session.sees("name?")
            assert ("timeout_ms" in session.text) is limited
            session.types(CTRL_C)
            session.ends()


@pytest.mark.parametrize("method", ["talk.prompt", "talk.select", "talk.gentle"])
def test_a_limit_counts_down_below_the_question_until_it_is_answered(method: str) -> None:
    with call(method, "--timeout", "3000") as session:
        session.sees("? ", "?", "49m ", "s left")
        drawn = len(session.text)
        while len(session.text) == drawn:  # nobody types
            session.written += session.process.read_nonblocking(4096, timeout=LIMIT)
        session.types(ENTER)
        assert session.ends() == SUCCESS
        assert "left" not in session.text.splitlines()[-1]


def test_without_a_limit_nothing_counts_down() -> None:
    with call("talk.prompt") as session:
        session.sees("Your name?")
        session.types("Bo" + ENTER)
        session.sees("Hello AdaBo")
        assert session.ends() == SUCCESS
        assert "left" not in session.text


def test_a_question_that_the_tool_withdraws_closes_and_progress_is_told_meanwhile() -> None:
    for seconds in TIMES:
        with call("talk.withdrawn", "--seconds", seconds) as session:
            session.sees("looking around")
            drawn = "Where is it?" in session.text.partition("looking around")[0]
            if drawn:
                session.sees("Where is it?")
            session.sees("Question withdrawn, found it: Where is it?", "no need: found it")
            assert session.ends() == SUCCESS
        if drawn:
            return
    raise AssertionError(session.text)


@pytest.mark.parametrize("method", ["talk.prompt", "talk.select", "talk.toppings", "talk.gentle"])
@pytest.mark.parametrize("key", [CTRL_C, "kill"])
def test_ctrl_c_in_a_prompt_cancels_the_call_and_says_so(method: str, key: str) -> None:
    with call(method) as session:
        session.sees("? ", "?")  # the mark before the question, and the one that ends it
        if key == "kill":
            session.process.kill(signal.SIGINT)
        else:
            session.types(key)
        session.sees("Cancelled: The call was stopped by Ctrl-C")
        assert session.ends() == CANCELLED
        assert "as you like" not in session.text


def test_ctrl_c_in_the_middle_of_a_form_cancels_the_call() -> None:
    with call("talk.visitor") as session:
        session.sees("name (as on the door)")
        session.types("Bob" + ENTER)
        session.sees("age")
        session.types(CTRL_C)
        session.sees("Cancelled: The call was stopped by Ctrl-C")
        assert session.ends() == CANCELLED


def test_ctrl_d_in_an_empty_prompt_cancels_the_call() -> None:
    with call("talk.gentle") as session:
        session.sees("Your name?")
        session.types(CTRL_D)
        session.sees("Cancelled: ")
        assert session.ends() == CANCELLED


def test_ctrl_c_while_the_tool_runs_cancels_it_and_lets_it_clean_up() -> None:
    with call("work.long") as session:
        session.sees("working")
        session.types(CTRL_C)
        session.sees("cleaned up", "Cancelled: The call was stopped by Ctrl-C")
        assert session.ends() == CANCELLED
        assert session.text.count("Cancelled") == 1


def test_a_second_ctrl_c_leaves_a_thread_behind() -> None:
    with call("work.thread") as session:
        session.sees("asleep")
        session.types(CTRL_C)
        session.sees("Cancelled: The call was stopped by Ctrl-C")
        session.types(CTRL_C)
        assert session.ends() == CANCELLED


# --- the bar --------------------------------------------------------------------------------


def test_the_progress_bar_goes_away_for_a_question_and_comes_back() -> None:
    with call("work.bar") as session:
        session.sees("first half", "50%", "Go on?")
        session.types("y")
        session.sees("second half", "100%", "done")
        assert session.ends() == SUCCESS


def test_data_go_to_a_file_while_questions_stay_in_the_terminal(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    with terminal(
        "/bin/sh", "-c", f"{sys.executable} -m midcall call cli_app talk.prompt > {out}"
    ) as session:
        session.sees("Your name?", "Ada")
        session.types(ENTER)
        assert session.ends() == SUCCESS
    assert out.read_text() == "Hello Ada\n"


def test_the_demo_walks_through_the_wizard_and_serves_until_ctrl_c() -> None:
    with midcall("demo", "--terminal", "--no-browser") as session:
        session.sees("ws://127.0.0.1:", "Project name:")
        session.types("mine" + ENTER)
        session.sees("Template:", "Full")
        session.types(DOWN + ENTER)
        session.sees("Create 'mine' with 'full'?")
        session.types("y")
        session.sees('"created"', "Ctrl-C ends the demo")
        session.types(CTRL_C)
        assert session.ends() == SUCCESS


def test_ctrl_c_in_the_tour_ends_the_demo() -> None:
    with midcall("demo", "--terminal", "--no-browser") as session:
        session.sees("Project name:")
        session.types(CTRL_C)
        session.sees("Cancelled: The call was stopped by Ctrl-C")
        assert session.ends() == CANCELLED
