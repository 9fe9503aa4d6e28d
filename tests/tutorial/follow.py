"""Follows docs/tutorial.md. `tests/tutorial/run` starts it.

What a block of code is for stands behind its language:

    sh                  is typed into a shell, which stays the same from block to block
    sh background       is typed into a shell of its own, which goes on beside
    sh install          builds the program; with ROUNDELAY_TEST_PROGRAM that one is taken instead
    sh debian, docker   for those without, and with Docker: this script has none
    sh kills            ends a process that the page has started
    python file=NAME    is saved under that name; so is any other language
    console             commands behind `$ `, and below each what it prints, where … is anything

Other blocks are only to be read, and there are none.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROJECT = sys.argv[1]
# A command is tried again for so long until it prints what it should: much here takes its time.
PATIENCE = 60


def blocks(text):
    """Language, words behind it, and body of each block."""
    for language, words, body in re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield language, words.split(), body


def commands(body):
    """The commands of a console, each with the lines that it prints."""
    found = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line:
            found[-1][1].append(line)
    return found


def fits(printed, expected):
    """Whether the expected lines are among those printed, in their order."""
    lines = iter(printed.splitlines())
    for line in expected:
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
        if not any(pattern.fullmatch(candidate.rstrip()) for candidate in lines):
            return False
    return True


class Shell:
    """A shell that stays the same: folder and environment go from one block to the next."""

    def __init__(self, folder, environment):
        self.folder, self.environment = folder, environment

    def run(self, text):
        keep = tempfile.NamedTemporaryFile(prefix="roundelay-tutorial.", delete=False)
        keep.close()
        script = f"set -eo pipefail\n{text}\n{{ pwd; env --null; }} >{keep.name}\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
        )
        with open(keep.name, encoding="utf-8") as kept:
            folder, _, environment = kept.read().partition("\n")
        os.unlink(keep.name)
        if done.returncode == 0:
            self.folder = folder
            self.environment = dict(pair.split("=", 1) for pair in environment.split("\0") if "=" in pair)
        return done.returncode, done.stdout


def main():
    # A shell lets what it runs in the background ignore Ctrl-C, and programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(f"{PROJECT}/docs/tutorial.md", encoding="utf-8") as page:
        steps = list(blocks(page.read()))
    scratch = tempfile.mkdtemp(prefix="roundelay-tutorial.")
    # The private node runs as another user, who has to get in.
    os.chmod(scratch, 0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDELAY_")}
    for name in ("ROUNDELAY_CACHE", "ROUNDELAY_SERVICE_TIMEOUT"):
        if name in os.environ:
            environment[name] = os.environ[name]
    program = os.environ.get("ROUNDELAY_TEST_PROGRAM")
    tools = f"{scratch}/bin"
    os.mkdir(tools)
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    # Folders that the page names are this run's own.
    node = f"{scratch}/rabbitmq"
    if os.path.exists("/tmp/roundelay-rabbitmq"):
        print("/tmp/roundelay-rabbitmq is there already; it is left alone", flush=True)
    rename = lambda text: text.replace("/tmp/roundelay-rabbitmq", node).replace("keep-fresh", f"{scratch}/keep-fresh")
    shell, beside, count = Shell(PROJECT, environment), [], 0
    began = time.monotonic()

    def fail(why, printed=""):
        sys.exit(f"docs/tutorial.md cannot be followed: {why}\n{printed}")

    try:
        for language, words, body in steps:
            count += 1
            body = rename(body)
            first = body.strip().splitlines()[0]
            name = next((word.removeprefix("file=") for word in words if word.startswith("file=")), None)
            if name:
                print(f"save   {name}", flush=True)
                with open(f"{shell.folder}/{name}", "w", encoding="utf-8") as file:
                    file.write(body)
            elif language == "sh" and words == ["docker"]:
                print(f"leave  {first}", flush=True)
            elif language == "sh" and words == ["install"] and program:
                print(f"take   {program}", flush=True)
                os.symlink(os.path.abspath(program), f"{tools}/roundelay")
            elif language == "sh" and words == ["background"]:
                print(f"beside {first}", flush=True)
                log = open(f"{scratch}/beside-{len(beside)}.log", "w+", encoding="utf-8")
                beside.append((first, log, subprocess.Popen(
                    ["bash", "-c", f"exec {body}"], cwd=shell.folder, env=shell.environment,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)))
            elif language == "sh" and words == ["kills"]:
                # The page finds a worker by name, which could be anybody's; this one is ours, and is the same one.
                ours = [process for line, _, process in beside if line.startswith("roundelay worker")]
                print(f"kill   {ours[-1].pid}", flush=True)
                ours[-1].send_signal(signal.SIGKILL)
                ours[-1].wait()
            elif language == "sh" and words in ([], ["debian"], ["install"]):
                # What ends the broker comes after the page's own Ctrl-C.
                if " stop " in body:
                    end(beside)
                    shell.folder = PROJECT
                print(f"type   {first}", flush=True)
                code, printed = shell.run(body)
                if code != 0:
                    fail(f"`{first}` ended with {code}", printed)
            elif language == "console":
                for command, expected in commands(body):
                    print(f"type   {command}", flush=True)
                    deadline = time.monotonic() + PATIENCE
                    while True:
                        code, printed = shell.run(command)
                        if code == 0 and fits(printed, expected):
                            break
                        if time.monotonic() > deadline:
                            fail(f"`{command}` ended with {code}, and printed not what is expected: {expected}", printed)
                        time.sleep(0.5)
            else:
                fail(f"a block of {language} {words} is not known to follow.py")
        print(f"{count} steps of docs/tutorial.md, in {time.monotonic() - began:.0f} s")
    except BaseException:
        for line, log, _ in beside:
            log.seek(0)
            print(f"--- {line}\n{log.read()[-2000:]}", file=sys.stderr)
        raise
    finally:
        end(beside)
        if os.path.exists(f"{node}/settings"):
            subprocess.run([f"{PROJECT}/deploy/local/rabbitmq", "stop", node], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(scratch, ignore_errors=True)


def end(beside):
    """Ctrl-C in all shells beside."""
    for _, _, process in beside:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for line, _, process in beside:
        try:
            process.wait(timeout=45)
        except subprocess.TimeoutExpired:
            process.kill()
            sys.exit(f"`{line}` did not end within 45 s of Ctrl-C")


main()
