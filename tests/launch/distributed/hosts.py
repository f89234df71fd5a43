"""Hosts of this machine: namespaces with addresses and names of their own, at one switch."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

from ...processes import children

NET = "10.77.0"
_HOST = "unshare --net --uts --mount --pid --ipc --fork --kill-child --mount-proc"
_SWITCH = "unshare --net --fork --kill-child"


def allowed():
    """Whether they can be made here, and joined."""
    words = "ip link add br0 type bridge && mount -t tmpfs tmpfs /dev/shm"
    made = subprocess.run(
        [*_HOST.split(), "sh", "-c", words], stderr=subprocess.DEVNULL, check=False
    )
    return made.returncode == 0


def _network(pid):
    return os.readlink(f"/proc/{pid}/ns/net")


class Hosts:
    """Hosts h0, h1 and so on; the file system is that of all, but for memory's and `folders`."""

    def __init__(self, folder, count, folders=()):
        """They are there within `with`, each with a memory of its own in place of the folders."""
        self._names, self._own = folder / "hosts", ["/dev/shm", *folders]
        self._held, self._pids = [], {}
        self._made = set()
        lines = [f"{self.address(i)} h{i}" for i in range(count)]
        self._names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self._count = count

    def __enter__(self):
        try:
            link = "ip link add br0 type bridge && ip link set br0 up"
            self._switch = self._hold(_SWITCH, link)
            for index in range(self._count):
                self.boot(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception):
        self.close()

    @staticmethod
    def address(index):
        return f"{NET}.{10 + index}"

    def _hold(self, unshare, words):
        """The process on which namespaces hang, once it has done what it is told."""
        process = subprocess.Popen(
            [*unshare.split(), "sh", "-c", f"{words} && echo up && exec sleep infinity"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._held.append(process)
        assert process.stdout.readline() == "up\n"
        (child,) = children(process.pid)
        self._made.add(_network(child))
        return child

    def boot(self, index):
        """Starts a host."""
        mounts = [f"mkdir -p {one} && mount -t tmpfs tmpfs {one}" for one in self._own]
        mounts.append(f"mount --bind {self._names} /etc/hosts")
        words = f"hostname h{index} && {' && '.join(mounts)} && ip link set lo up"
        pid = self._pids[index] = self._hold(_HOST, words)
        wire = f"ip link set tv{index} master br0 up"
        link = f"ip link add tv{index} type veth peer name eth0 netns {pid} && {wire}"
        subprocess.check_call([*self._in_switch(), "sh", "-c", link])
        own = f"ip addr add {self.address(index)}/24 dev eth0 && ip link set eth0 up"
        subprocess.check_call([*self.on(index), "sh", "-c", own])

    def _in_switch(self):
        return ["nsenter", "-t", str(self._switch), "-n"]

    def on(self, index):
        """What a command begins with that is to run there."""
        return ["nsenter", "-t", str(self._pids[index]), *["-n", "-u", "-m", "-p", "-i", "--"]]

    def of(self, pid):
        """The host of a process."""
        own = _network(pid)
        return next(i for i, other in self._pids.items() if _network(other) == own)

    def kill(self, index):
        """The machine is gone at once."""
        os.kill(self._pids.pop(index), signal.SIGKILL)

    def cable(self, index, state):
        """Its cable is `down`, when nobody hears that anything ends there, or `up` again."""
        switch = [*self._in_switch(), "ip", "link", "set", f"tv{index}"]
        subprocess.check_call([*switch, state])

    def close(self):
        """Ends all hosts, and with them all that is there: of it nothing is left."""
        for process in reversed(self._held):
            process.kill()
            process.wait()
            process.stdout.close()
        deadline = time.monotonic() + 20
        while self._used() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self._used()

    def _used(self):
        """Whether any process is in a namespace that was made."""
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if _network(path.name) in self._made:
                    return True
        return False
