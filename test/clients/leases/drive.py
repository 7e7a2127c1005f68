"""Drive the programs of doc/howto/leases.md: a mail sender that is killed, a nightly job that is frozen.

    drive.py

Programs are behind a proxy (../harness/proxy.py), and mails go to a mail server that
counts them and holds its answers back when it is told to.  The database has
schema.sql.  Prints "ok" or "NOT OK" for each check.
"""

import collections
import os
import pathlib
import re
import socketserver
import sys
import threading

import psycopg

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness")]

from programs import Program, at_every_step, check, in_parallel, wait_until  # noqa: E402

LANES = 4
LEASE = 1
CUSTOMERS, BATCH = 3, 2


class MailServer(socketserver.StreamRequestHandler):
    """Enough SMTP to take mails; counts them by their Message-ID."""
    accepted = collections.Counter()
    holds = {}                  # Message-ID -> (when, function)

    def say(self, line):
        self.wfile.write(line.encode() + b"\r\n")

    def handle(self):
        self.say("220 test")
        while line := self.rfile.readline():
            word = line[:4].upper().strip()
            if word == b"QUIT":
                self.say("221 bye")
                return
            if word == b"RCPT" and b"nobody@" in line:
                self.say("550 no such mailbox")
            elif word == b"DATA":
                self.say("354 go on")
                if not self.take():
                    return
            else:
                self.say("250 ok")

    def take(self):
        """One mail; False if its sender is gone."""
        lines = iter(self.rfile.readline, b".\r\n")
        mail = re.search(rb"^Message-ID: <(.*)@shop", b"".join(lines), re.M | re.I)[1].decode()
        when, act = self.holds.pop(mail, (None, None))
        if when == "before":
            act()
            return False
        self.accepted[mail] += 1
        if when == "after":
            act()
        self.say("250 taken")
        return True


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Its client was killed."""


class Database:
    """A superuser's look."""

    def __init__(self):
        self.lock = threading.Lock()
        self.conn = psycopg.connect(autocommit=True, user="postgres")

    def rows(self, query, *args):
        with self.lock:
            cursor = self.conn.execute(query, args)
            return cursor.fetchall() if cursor.description else []

    def value(self, query, *args):
        return self.rows(query, *args)[0][0]


def program(name, *arguments, application=None, **env):
    log = f"{name} {'-'.join(arguments)} {program.n}.log"
    program.n += 1
    return Program([sys.executable, "-B", str(HERE / f"{name}.py"), *arguments], "job", log, application, **env)


program.n = 0


# Mails

class Mails:
    def __init__(self, database):
        self.database = database
        database.rows("SELECT idempotency.consumer_alter('mailer', lease_duration => '1 s')")
        database.rows("SELECT idempotency.consumer_alter('mailer once', lease_duration => '1 s')")

    def new(self, mail, recipient="somebody@shop.example"):
        self.database.rows("INSERT INTO mails VALUES (%s, %s, 'Your order')", mail, recipient)

    def ended(self, mail):
        """sent, gave up, or nothing yet."""
        return self.database.value("SELECT CASE WHEN sent_at IS NOT NULL THEN 'sent' "
                                   "WHEN gave_up_at IS NOT NULL THEN 'gave up' END FROM mails WHERE id = %s", mail)

    def outcome(self, mail, *senders):
        """How the mail ends while the senders are started again, and how often it was accepted."""
        def over():
            for sender in senders:
                sender.revive()
            return self.ended(mail)
        return wait_until(f"{mail} is sent or given up", over), MailServer.accepted[mail]

    def killed(self, consumer, when):
        """The sender is killed when the mail server has the mail, before or after it has accepted it."""
        mail = f"{consumer} killed {when}".replace(" ", "-")
        self.new(mail)
        sender = program("mailer", consumer)
        MailServer.holds[mail] = when, sender.kill
        try:
            return self.outcome(mail, sender)
        finally:
            sender.stop()

    def frozen(self, consumer):
        """The sender is frozen when the mail is accepted; another one takes over, then it goes on."""
        mail = f"{consumer} frozen".replace(" ", "-")
        self.new(mail)
        frozen, other = (program("mailer", consumer) for _ in range(2))
        MailServer.holds[mail] = "after", frozen.freeze
        try:
            frozen.start()
            wait_until("it is frozen", lambda: MailServer.accepted[mail] and frozen.is_frozen())
            how = self.outcome(mail, other)
            frozen.thaw()
            text = "another process has taken the mail over"
            log = pathlib.Path(frozen.log.name)
            wait_until("the thawed one finds out", lambda: text in log.read_text())
            return how, self.ended(mail)
        finally:
            frozen.stop()
            other.stop()

    def at_step(self, consumer, mail, step):
        """Killed at a step of the sender: how it ended; None if the step never came."""
        self.new(mail)
        sender = program("mailer", consumer)
        sender.proxy.arm(step, "before", sender.kill)
        try:
            how = self.outcome(mail, sender)
            return how if sender.proxy.acted.is_set() else None
        finally:
            sender.stop()

    def check_kills(self):
        check("killed before the mail was accepted: another attempt sends it",
              self.killed("mailer", "before") == ("sent", 1))
        check("killed after it was accepted: another attempt sends it again",
              self.killed("mailer", "after") == ("sent", 2))
        check("at most once, killed before the mail was accepted: it is never sent",
              self.killed("mailer once", "before") == ("gave up", 0))
        check("at most once, killed after it was accepted: it is not sent again",
              self.killed("mailer once", "after") == ("gave up", 1))
        redriven = self.database.value("SELECT idempotency.consumer_redrive('mailer once', '{mailer-once-killed-before}')")
        self.database.rows("UPDATE mails SET gave_up_at = NULL WHERE id = 'mailer-once-killed-before'")
        sender = program("mailer", "mailer once")
        try:
            check("an operator has a mail sent that was given up",
                  redriven == 1 and self.outcome("mailer-once-killed-before", sender) == ("sent", 1))
        finally:
            sender.stop()

    def check_refusals(self):
        sender = program("mailer", "mailer once")
        try:
            self.new("to-nobody", "nobody@shop.example")
            check("a refused recipient: given up at once", self.outcome("to-nobody", sender) == ("gave up", 0))
        finally:
            sender.stop()

    def check_frozen(self):
        how, after = self.frozen("mailer")
        check("frozen after the mail was accepted: another sends it again, the frozen one completes nothing",
              how == ("sent", 2) and after == "sent", (how, after))

    def check_steps(self):
        outcomes = []
        while (how := self.at_step("mailer once", f"step-{len(outcomes)}", len(outcomes))) and len(outcomes) < 6:
            outcomes.append(how)
        # looks for mails, leases; begins, completes, updates, commits
        check("at most once, killed at each step: sent later without a lease, given up with one",
              outcomes == [("sent", 1)] * 2 + [("gave up", 1)] * 4, outcomes)


# The nightly job

class Nights:
    def __init__(self, database):
        self.database, self.night, self.lock = database, 0, threading.Lock()

    def next(self):
        """A night with its usage."""
        with self.lock:
            self.night += 1
            night = str(self.database.value("SELECT date '2026-01-01' + %s", self.night))
        self.database.rows("INSERT INTO usage SELECT c, %s, c FROM generate_series(1, %s) c, generate_series(1, 2)",
                           night, CUSTOMERS)
        return night

    def problem(self, night):
        rows = self.database.rows("SELECT customer, amount FROM invoices WHERE run = %s ORDER BY 1",
                                  f"invoices of {night}")
        good = [(c, 2 * c) for c in range(1, CUSTOMERS + 1)]
        return "" if rows == good else f"{night}: {rows}"

    def hosts(self, night, n):
        return [program("nightly", night, application="nightly", LEASE=str(LEASE), BATCH=str(BATCH)) for _ in range(n)]

    def said(self, host):
        return pathlib.Path(host.log.name).read_text().split("\n")

    def check_hosts(self):
        night = self.next()
        hosts = self.hosts(night, 4)
        statuses = in_parallel(lambda host: host.start().wait(), hosts)
        for host in hosts:
            host.stop()
        said = collections.Counter(line for host in hosts for line in self.said(host))
        check("one of four hosts runs the job", statuses == [0] * 4 and said["claimed"] == said["done"] == 1 and
              said["duplicate"] == 3 and not self.problem(night), (statuses, said, self.problem(night)))

    def at_step(self, step, how):
        """One host is killed or frozen at a step, another one finishes; None if the step never came."""
        night = self.next()
        first, second = self.hosts(night, 2)
        try:
            first.proxy.arm(step, "before", getattr(first, how))
            first.start()
            wait_until("the step comes", lambda: first.frozen.is_set() or not first.is_running())
            if not first.frozen.is_set() and first.wait() == 0:
                return None
            problem = "" if second.start().wait() == 0 else "the second host failed"
            problem = problem or self.problem(night)
            if first.frozen.is_set():
                first.thaw()
                status = first.wait()
                # it was frozen before its lease, or another one has done the job meanwhile
                if status == 0 and "duplicate" not in self.said(first):
                    problem = problem or "the frozen host ended as if it had done the job"
                problem = problem or self.problem(night)
            return f"step {step}, {first.proxy.steps[step]}: {problem}" if problem else ""
        finally:
            first.stop()
            second.stop()

    def check_steps(self):
        self.database.rows("ALTER ROLE job SET idle_in_transaction_session_timeout = '2 s'")
        for how, name, stride in ("freeze_until_thawed", "frozen", 1), ("kill", "killed", 4):
            results = at_every_step(range(LANES), lambda _, n: self.at_step(n * stride, how))
            check(f"a host that is {name} at any of its steps: another one finishes, each invoice is written once",
                  len(results) > 10 / stride and not any(results), "\n".join(filter(None, results)) or f"{len(results)} steps")

    def check_late(self):
        """Frozen between two transactions: what it does next fails."""
        night = self.next()
        first, second = self.hosts(night, 2)
        try:
            # lease_event, BEGIN of the first batch
            first.proxy.arm(1, "before", first.freeze_until_thawed)
            first.start()
            wait_until("it is frozen", first.frozen.is_set)
            status = second.start().wait()
            first.thaw()
            check("a host that wakes up after another one has done the job loses its lease, and writes nothing",
                  status == 0 and first.wait() != 0 and "lease of event" in "\n".join(self.said(first)) and
                  not self.problem(night), (status, self.said(first)[-3:], self.problem(night)))
        finally:
            first.stop()
            second.stop()


def main():
    server = Server(("127.0.0.1", 0), MailServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["SMTP_PORT"] = str(server.server_address[1])
    database = Database()
    mails, nights = Mails(database), Nights(database)
    mails.check_kills()
    mails.check_refusals()
    mails.check_frozen()
    mails.check_steps()
    nights.check_hosts()
    nights.check_late()
    nights.check_steps()


main()
