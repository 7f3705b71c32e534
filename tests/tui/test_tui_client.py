"""The link over a real Unix socket, and what the terminal's process imports."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_engine import Paper, serve
from tui_record import record

from kerneltui.model.command import ReadSource, SetPaused
from kerneltui.model.frames import encode_frame
from kerneltui.tui import Quit, run
from kerneltui.tui.client import LinkError, SocketLink
from kerneltui.tui.clipboard import copy_text
from kerneltui.tui.editor import EditorError, edit_text
from kerneltui.tui.feed import Feed
from kerneltui.tui.messages import JobLines, TimelineReady, Updated


async def engine(path: Path, paper: Paper) -> asyncio.Task[None]:
    ready = asyncio.Event()
    task = asyncio.create_task(serve(path, paper, ready.set, chatter=False))
    await ready.wait()
    return task


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def wait_for(condition: Any) -> None:
    end = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"never: {condition}"
        await asyncio.sleep(0.01)


def test_a_long_path_is_reached(tmp_path: Path) -> None:
    async def play() -> None:
        folder = tmp_path / ("x" * 120)
        folder.mkdir()
        here = Path.cwd()
        try:
            os.chdir(folder)  # binding has the same limit as connecting
            task = await engine(Path("engine.sock"), Paper(record()))
        finally:
            os.chdir(here)
        link = await SocketLink.open(str(folder / "engine.sock"))
        posted: list[Any] = []
        feed = Feed(posted.append, readonly=False)
        following = asyncio.create_task(feed.run(link))
        await wait_for(lambda: feed.snapshot.state.session == "7f3a")
        reply = await feed.ask(ReadSource("c0028"))
        assert reply.data["parent"] == "c0025"
        reply = await feed.ask(SetPaused(True))
        assert reply.error == ""
        await wait_for(lambda: feed.snapshot.state.paused)
        await wait_for(lambda: any(isinstance(message, JobLines) for message in posted))
        feed.close()
        await following
        assert feed.snapshot.link.status == "gone"
        await stop(task)

    asyncio.run(play())


def test_a_replay_arrives_whole(tmp_path: Path) -> None:
    async def play() -> None:
        paper = Paper(record(), replay=True)
        task = await engine(tmp_path / "s", paper)
        posted: list[Any] = []
        feed = Feed(posted.append, readonly=True)
        following = asyncio.create_task(feed.run(await SocketLink.open(str(tmp_path / "s"))))
        await wait_for(lambda: any(isinstance(message, TimelineReady) for message in posted))
        timeline = next(m for m in posted if isinstance(m, TimelineReady)).timeline
        assert timeline.events == tuple(paper.session.events)
        reply = await feed.ask(SetPaused(True))
        assert reply.error == "a replay is read only"
        feed.close()
        await following
        await stop(task)

    asyncio.run(play())


def test_many_events_are_few_snapshots_and_one_state(tmp_path: Path) -> None:
    async def play() -> None:
        paper = Paper(record())
        task = await engine(tmp_path / "s", paper)
        posted: list[Any] = []
        feed = Feed(posted.append, readonly=False)
        following = asyncio.create_task(feed.run(await SocketLink.open(str(tmp_path / "s"))))
        await wait_for(lambda: feed.snapshot.may_decide)
        await asyncio.gather(*(feed.ask(SetPaused(i % 2 == 0)) for i in range(200)))
        await wait_for(lambda: feed.snapshot.state.position == paper.state.position)
        assert feed.snapshot.state.canonical() == paper.state.canonical()
        assert sum(isinstance(message, Updated) for message in posted) < 200
        feed.close()
        await following
        await stop(task)

    asyncio.run(play())


def test_nobody_there_is_one_line(tmp_path: Path) -> None:
    async def play() -> None:
        with pytest.raises(LinkError, match="cannot reach the engine"):
            await SocketLink.open(str(tmp_path / "nothing"))

    asyncio.run(play())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "closed the link"),
        (b"\xff\xff\xff\xff", "no frame"),
        (b"\x00\x00\x00\x02[]", "no frame"),
        (encode_frame({"frame": "welcome", "protocol": 9}), "use the same version"),
        (encode_frame({"frame": "welcome"}), "cannot read"),
        (encode_frame({"frame": "goodbye", "reason": "idle for 30 min"}), "idle for 30 min"),
    ],
)
def test_what_comes_is_never_a_crash(data: bytes, reason: str) -> None:
    async def play() -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        feed = Feed(lambda message: None, readonly=False)
        await feed.run(SocketLink(ours))
        assert reason in feed.snapshot.link.text
        theirs.close()

    asyncio.run(play())


def test_a_question_to_an_engine_that_goes_is_answered() -> None:
    async def play() -> None:
        ours, theirs = socket.socketpair()
        feed = Feed(lambda message: None, readonly=False)
        following = asyncio.create_task(feed.run(SocketLink(ours)))
        await asyncio.sleep(0)
        asked = asyncio.create_task(feed.ask(ReadSource("c0001")))
        await asyncio.to_thread(theirs.recv, 10)
        theirs.close()
        assert (await asked).error
        await following
        assert (await feed.ask(ReadSource("c0001"))).error == "the engine is gone"

    asyncio.run(play())


def test_the_terminal_imports_nothing_heavy() -> None:
    code = (
        "import sys, kerneltui.tui, kerneltui.tui.draw.code;"
        "kerneltui.tui.draw.code.highlight('int x;');"
        "print(sorted({'torch','numpy','git','anthropic','cupy','pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_dumb_terminal_is_refused_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    ended = run("nowhere")
    assert isinstance(ended, Quit)
    assert ended.exit_code == 2
    assert "TERM=dumb" in ended.message


def test_the_editor_changes_a_text_or_says_why_not(tmp_path: Path) -> None:
    script = tmp_path / "editor"
    script.write_text('#!/bin/sh\nsed -i s/one/two/ "$1"\n')
    script.chmod(0o755)
    assert edit_text("one", "kernel.cpp", {"EDITOR": str(script)}) == "two"
    assert edit_text("none of it".replace("one", "x"), "k", {"EDITOR": "true"}) is None
    with pytest.raises(EditorError, match="ended with code 1"):
        edit_text("x", "k", {"EDITOR": "false"})
    with pytest.raises(EditorError, match="set EDITOR"):
        edit_text("x", "k", {"EDITOR": "/nowhere/at/all"})


def test_copying_says_what_was_done(tmp_path: Path) -> None:
    sent: list[str] = []

    def copy(folder: Path | None) -> str:
        return asyncio.run(
            copy_text("code", "sha", osc52=sent.append, folder=folder, environment={})
        )

    assert "OSC 52" in copy(tmp_path)
    assert (tmp_path / "clipboard").read_text() == "code"
    assert "not to a file" in copy(tmp_path / "missing")
    assert sent == ["code", "code"]
