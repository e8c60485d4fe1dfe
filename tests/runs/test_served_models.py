"""`freerun serve` and `freerun chat` with a real model in real processes."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from served_models import Server
from tiny_runs import ROOT, are_gone, make_run

from freerun.cli.main import main

PLAIN = ("--data.use_chat_template", "false")


@pytest.mark.slow
def test_a_model_is_served_as_its_clients_ask_and_ends_without_a_trace(tmp_path: Path) -> None:
    make_run(tmp_path)
    server = Server(tmp_path, str(tmp_path / "model"), *PLAIN, "--sampling.max_completion_tokens", "5")

    def ask(*contents: str, **settings: Any) -> Any:
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(contents)]
        body = {"model": "model", "messages": messages, **settings}
        answer = client.post("/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(answer: Any) -> str:
        return str(answer["choices"][0]["message"]["content"])

    with server.client() as client:
        greedy = [ask("^12,18>", temperature=0) for _ in range(2)]
        assert text(greedy[0]) == text(greedy[1]), "temperature 0 samples nothing"
        assert greedy[0]["usage"]["completion_tokens"] <= 5
        longer = ask("^12,18>", max_tokens=40, temperature=100)
        assert 5 < longer["usage"]["completion_tokens"] <= 40
        continued = ask("^12,18>", text(longer), ">", temperature=0)
        assert continued["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert server.stop() == 0, server.output


@pytest.mark.slow
def test_a_key_in_the_environment_is_that_of_the_clients_and_no_worker_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path)
    monkeypatch.setenv("FREERUN_KEY", "my-secret")
    server = Server(tmp_path, str(tmp_path / "model"), *PLAIN)
    with server.client() as client:
        assert server.told("key") == "my-secret"
        assert client.get("/models").status_code == 200
        assert client.get("/models", headers={"authorization": "Bearer other"}).status_code == 401
        workers = psutil.Process(server.process.pid).children(recursive=True)
        assert workers
        assert not [worker for worker in workers if "my-secret" in worker.environ().values()]
    assert server.stop() == 0, server.output


def test_what_cannot_be_served_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path)
    model = str(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusals = {
            "no chat template": [model],
            "is neither a model directory": [str(tmp_path / "nothing")],
            "cannot listen on": [model, "--address", f"127.0.0.1:{port}", *PLAIN],
            "needs a key": [model, "--address", "0.0.0.0:0", *PLAIN],
            "rollout.max_session_tokens": [model, "--rollout.max_session_tokens", "1", *PLAIN],
        }
        for reason, arguments in refusals.items():
            assert main(["serve", *arguments]) == 2
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.startswith("freerun: ")
            assert reason in error


@pytest.mark.slow
def test_a_chat_takes_one_message_per_line_and_ends_with_its_input(tmp_path: Path) -> None:
    make_run(tmp_path)
    said = "^12,18>\n\n/reset\n^12,18>\n/quit\n^1,2>"
    chat = [sys.executable, "-m", "freerun.cli.main", "chat", str(tmp_path / "model"), *PLAIN]
    short = ["--temperature", "0", "--sampling.max_completion_tokens", "5"]
    done = subprocess.run([*chat, *short], input=said, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    first, again = done.stdout.splitlines()
    assert first == again, "a conversation that begins again has forgotten the first one"
    assert "(the conversation begins again)" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_chat_that_waits_for_a_line(tmp_path: Path) -> None:
    make_run(tmp_path)
    command = [sys.executable, "-m", "freerun.cli.main", "chat", str(tmp_path / "model"), *PLAIN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"^12,18>\n")
        chat.stdin.flush()
        chat.stdout.readline()
        processes = psutil.Process(chat.pid).children(recursive=True)
        chat.send_signal(signal.SIGINT)
        assert chat.wait(60) == 0
        assert are_gone(processes)
