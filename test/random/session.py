"""A client's session that may be left waiting: a statement is sent, its answer is asked for later.

The connections are psycopg2's asynchronous ones, so one thread drives all sessions and the order of their
statements is the test's alone.
"""
import select
import time

import psycopg2
import psycopg2.extensions

from server import Finding

# No statement of these tests takes so long on its own, however slow the machine is.
PATIENCE = 120


class Answer:
    """Rows, or a SQLSTATE; lost: the session ended instead of answering."""

    def __init__(self, rows=None, state=None, text="", lost=False):
        self.rows, self.state, self.text, self.lost = rows, state, text, lost

    def __repr__(self):
        if self.lost:
            return "connection lost"
        if self.state:
            return f"{self.state} {self.text}"
        return repr(self.rows)


class Session:
    def __init__(self, cluster, dbname, name):
        self.cluster, self.dbname, self.name = cluster, dbname, name
        self.sent = False
        self.open()

    def open(self):
        self.conn = psycopg2.connect(host=self.cluster.host, port=self.cluster.port, user="postgres",
                                     dbname=self.dbname, application_name=self.name, async_=True)
        self.sent, self.early = True, None
        if self.wait(PATIENCE, cursor=False).lost:
            raise Finding(f"session {self.name} cannot connect")
        self.pid = self.conn.info.backend_pid
        self.cursor = self.conn.cursor()

    def close(self):
        self.conn.close()
        self.sent = False

    def send(self, sql, args=None):
        assert not self.sent
        self.sent = True
        try:
            self.cursor.execute(sql, args)
        except psycopg2.Error:
            pass        # the next poll says the same
        self.early = self.wait(0)       # the driver sends the rest only when it is asked

    def answer(self, seconds):
        """The answer, or None if it has not come by then."""
        early, self.early = self.early, None
        return early or self.wait(seconds)

    def has_answer(self):
        self.early = self.early or self.wait(0)
        return self.early is not None

    def wait(self, seconds, cursor=True):
        end = time.monotonic() + seconds
        try:
            while True:
                state = self.conn.poll()
                if state == psycopg2.extensions.POLL_OK:
                    self.sent = False
                    return Answer(self.cursor.fetchall() if cursor and self.cursor.description else [])
                left = end - time.monotonic()
                if left <= 0:
                    return None
                reading = state == psycopg2.extensions.POLL_READ
                select.select([self.conn] if reading else [], [] if reading else [self.conn], [], left)
        except psycopg2.Error as error:
            self.sent = False
            if self.conn.closed or error.pgcode is None or error.pgcode.startswith("57P"):
                self.conn.close()
                return Answer(lost=True)
            return Answer(state=error.pgcode, text=str(error).split("\n", maxsplit=1)[0])

    def run(self, sql, args=None):
        """Send it and wait: for statements that wait for nobody."""
        self.send(sql, args)
        answer = self.answer(PATIENCE)
        if answer is None:
            raise Finding(f"session {self.name} waits for more than {PATIENCE} s: {sql}")
        return answer
