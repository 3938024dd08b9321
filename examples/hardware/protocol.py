"""The rig's side of the line: answers requests, one line of JSON each, over pipes or TCP.

Copy this file to the computer of the rig; it needs Python 3.8 or newer and nothing else. A rig is an object with three methods:

    reset()      bring the rig to where experiments start
    run(params)  one experiment; returns the reward, or {"objective": reward, "constraints": {name: value}}
    stop()       motor off, at once; may be called from another thread, at any time, more than once

Every error, a closed line and the end of this program stop the rig, also in the middle of an experiment: experiments run in a
thread of their own, while another one watches the line. Only a call that never gives Python a chance (C code that keeps the
interpreter's lock) can delay that.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading

KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}  # a dead connection is noticed within 8 s
PATIENCE = 0.5  # seconds that an experiment has to end after the rig was stopped at the end of its line


def answer(rig, line, lock, over=lambda: False):
    """The answer to one request, as a line. A "stop" does not wait for the lock; `over` says whether the line has ended."""
    reply = {}
    try:
        request = json.loads(line, parse_constant=_refuse)
        reply["id"] = request["id"]
        if request["command"] == "stop":
            rig.stop()
        else:
            with lock:
                reply = {**_execute(rig, request, over), **reply}
        return json.dumps(reply, allow_nan=False) + "\n"
    except Exception as error:
        return json.dumps({"id": reply.get("id"), "error": _text(error) + _stopped(rig)}) + "\n"


def _execute(rig, request, over):
    if over():
        raise ConnectionError("the line was closed before this began")
    try:
        if request["command"] == "run":
            result = rig.run(dict(request["params"]))
            result = result if isinstance(result, dict) else {"objective": float(result)}
            return json.loads(json.dumps(result), parse_constant=_refuse)
        if request["command"] == "reset":
            rig.reset()
            return {}
        raise ValueError(f"unknown command {request['command']!r}")
    except SystemExit as error:
        raise RuntimeError(f"the rig's program wanted to end: {error}") from None
    finally:
        if over():  # the stop at the end of the line may have come just before the rig began
            rig.stop()


def _refuse(constant):
    raise ValueError(f"{constant} is not a number that can be sent")


def _stopped(rig):
    """Stop the rig; what went wrong with that."""
    try:
        rig.stop()
    except Exception as error:
        return f"; THE STOP FAILED: {_text(error)}"
    return ""


def _text(error):
    return f"{type(error).__name__}: {error}"


class Conversation:
    """One line: requests are executed by a thread, one after the other; `hear` never waits for them."""

    def __init__(self, rig, send, lock):
        self.rig, self.send, self.lock = rig, send, lock
        self.over = threading.Event()
        self.asked = False  # for anything but a stop
        self.sending, self.requests = threading.Lock(), queue.Queue()
        self.worker = threading.Thread(target=self.work, daemon=True)
        self.worker.start()

    def hear(self, line):
        """Take a request. "reset" and "run" wait for their turn; a "stop", and what makes no sense, stop the rig at once."""
        try:
            waits = json.loads(line)["command"] in ("reset", "run")
        except Exception:
            waits = False
        if waits:
            self.asked = True
            self.requests.put(line)
        else:
            self.reply(line)

    def work(self):
        """Answer what was asked, in order."""
        for line in iter(self.requests.get, None):
            self.reply(line)

    def reply(self, line):
        """Answer one request."""
        text = answer(self.rig, line, self.lock, self.over.is_set)
        try:
            with self.sending:
                self.send(text)
        except (OSError, ValueError):  # nobody there any more
            self.rig.stop()

    def end(self):
        """The line has ended: stop the rig, whatever it is doing, and again when that has ended."""
        self.over.set()
        self.requests.put(None)
        if self.asked:
            try:
                self.rig.stop()
            finally:
                self.worker.join(PATIENCE)
                if self.worker.is_alive():
                    self.rig.stop()


def _signals(handle):
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), handle)


def nothing_to_stop():
    """Until a rig is served, nothing is switched on: a signal (Ctrl-C while the program starts) ends it at once, in order."""
    _signals(lambda *_: os._exit(0))


def serve_pipes(rig):
    """Answer requests from standard input on standard output until it closes or the program is told to end.

    Then the program exits: with status 0 if the rig was stopped, with another one if that failed. Stopped, it exits at once,
    without Python's clean-up: that can take seconds, a signal in the middle of it would kill the program, and the other side
    could not know that the rig is off. What has to be released belongs into `stop`.
    """
    sink, sys.stdout = sys.stdout, sys.stderr  # whatever is printed must not end up between the answers

    def send(text):
        sink.write(text)
        sink.flush()

    def read():
        try:
            with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as source:
                for line in source:
                    conversation.hear(line.decode(errors="replace"))
        finally:
            ended.put(None)

    ended = queue.SimpleQueue()  # may be filled from a signal handler, so that a signal never interrupts a stop
    _signals(lambda *_: ended.put(None))
    conversation = Conversation(rig, send, threading.Lock())
    conversation.asked = True  # a program that ends leaves nothing switched on
    threading.Thread(target=read, daemon=True).start()
    _wait(ended)
    conversation.end()
    sys.stderr.flush()
    os._exit(0)


def _wait(ended):
    while True:
        try:
            return ended.get(timeout=0.1)  # Windows runs signal handlers in between only
        except queue.Empty:
            pass


def serve_socket(rig, host="127.0.0.1", port=0, ready=lambda port: None):
    """Answer requests over TCP until the program is told to end; `ready` is called with the port.

    Experiments come one at a time. A "stop" is executed at once, on whatever connection it comes. There is no password: anyone
    who can reach the port can run the motor.
    """
    one_at_a_time = threading.Lock()

    def talk(connection):
        with connection:
            conversation = Conversation(rig, lambda text: connection.sendall(text.encode()), one_at_a_time)
            try:
                keep_alive(connection)
                with connection.makefile("r", encoding="utf-8", errors="replace") as lines:
                    for line in lines:
                        conversation.hear(line)
            except OSError:
                pass
            finally:
                conversation.end()

    def accept(server):
        try:
            while True:
                connection, _ = server.accept()
                threading.Thread(target=talk, args=(connection,), daemon=True).start()
        finally:
            ended.put(None)

    ended = queue.SimpleQueue()
    if threading.current_thread() is threading.main_thread():
        _signals(lambda *_: ended.put(None))
    with socket.create_server((host, port)) as server:
        ready(server.getsockname()[1])
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        _wait(ended)
        rig.stop()


def keep_alive(connection):
    """Let the system notice when the other computer, or the cable, is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
