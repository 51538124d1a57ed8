"""What the scripts that drive a GPU share: commands with a limit, documents that are written as a whole."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time


def run(command, seconds, env=None, echo=False):
    """(exit code, stdout, stderr, seconds); 124: no end within the limit, and what was printed until then. The command and all that
    it started are gone when this returns. echo: its output appears line by line as well."""
    start = time.time()
    out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    try:
        p = subprocess.Popen(command, stdout=out, stderr=err, text=True, preexec_fn=os.setpgrp, env=env)
    except OSError as e:
        return 127, "", f"{command[0]}: {e.strerror}", 0.0
    seen, rc = 0, None
    try:
        while rc is None:
            try:
                rc = p.wait(1 if echo else max(0.0, start + seconds - time.time()))
            except subprocess.TimeoutExpired:
                if time.time() - start >= seconds:
                    kill(p)
                    rc = 124
            if echo:
                out.seek(seen)
                text = out.read()
                seen = out.tell()
                sys.stdout.write(text)
                sys.stdout.flush()
    except BaseException:  # we are to end: so is what we started
        kill(p)
        raise
    out.seek(0)
    err.seek(0)
    text = err.read().strip()
    return rc, out.read(), text if rc != 124 else (text + f"\nno end in {seconds:.0f} s").strip(), time.time() - start


def kill(p):
    """Asked first, since it may have started others in groups of their own."""
    for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, None)):
        try:
            os.killpg(p.pid, number)
            p.wait(seconds)
            return
        except ProcessLookupError:
            p.wait()
            return
        except subprocess.TimeoutExpired:
            pass


# A script that is asked to end takes what it runs with it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def write_json(path, document):
    """As a whole or not at all."""
    if not path:
        return
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(document, f, indent=1)
    os.replace(path + ".new", path)


def read_json(path, default=None):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return default


def base_bytes(profile):
    """What a GPU holds before any weight, by this profile."""
    with open(profile, encoding="utf-8") as f:
        for line in f:
            if line.strip().startswith("base_bytes:"):
                return int(line.split(":")[1])
    return 0


def psrun(o, options, seconds):
    """On o.device; a plan in which no GPU takes part runs without one."""
    result = run([f"{o.bin}/psrun", *on(o.device), *options], seconds)
    if result[0] != 0 and "no GPU takes part" in result[2]:
        result = run([f"{o.bin}/psrun", *options], seconds)
    return result


def on(device):
    """Options of psrun for this device."""
    return [] if device == "cuda" else ["--device", device]


def taking_part(device):
    """Options of psplan for a plan whose programs use this device. The emulated one is slower than any CPU: by itself psplan may leave it out."""
    return [] if device == "cuda" else ["--force", "split"]
