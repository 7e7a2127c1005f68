"""Where the program connects to, whatever URLs, names, receivers and events say.  The scenes are in address_scene.py."""
import os
import pathlib
import subprocess
import sys

from notrun import NotRun

SCENE = pathlib.Path(__file__).resolve().parent / "address_scene.py"
# Network and mounts of its own; without root in a namespace of users, too.
OWN = ["unshare", "--net", "--mount", "--propagation", "private"] + ([] if os.getuid() == 0 else ["--map-root-user"])


def play(scene):
    try:
        able = subprocess.run([*OWN, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        raise NotRun("the machine does not let the test have a network of its own")
    done = subprocess.run([*OWN, sys.executable, "-B", SCENE, scene], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600)
    print(done.stdout, end="")
    assert done.returncode == 0, done.stdout.strip().split("\n")[-1]


def _make(name):
    def test():
        play(name)
    test.__name__ = f"test_address_{name}"
    return test


for _line in SCENE.read_text().splitlines():
    if _line.startswith("def scene_"):
        _name = _line[len("def scene_"):].partition("(")[0]
        globals()[f"test_address_{_name}"] = _make(_name)
