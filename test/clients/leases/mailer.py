"""The mail sender of doc/howto/leases.md, which shows the lines between the marks.

    mailer.py CONSUMER      "mailer" or "mailer once"

drive.py runs it.  SMTP_PORT is that of the mail server on this host.
"""

# >>> mailer
import os
import smtplib
import socket
import sys
import time
from email.message import EmailMessage

import psycopg

HOLDER = f"{socket.gethostname()} {os.getpid()}"


def send_mails(conn, consumer):
    """One round over what is to be sent."""
    mails = conn.execute("SELECT id, recipient, subject FROM mails "
                         "WHERE sent_at IS NULL AND gave_up_at IS NULL ORDER BY id LIMIT 100").fetchall()
    for mail in mails:
        send_once(conn, consumer, *mail)


def send_once(conn, consumer, mail, recipient, subject):
    result, token = conn.execute(               # in autocommit mode: when it has returned, the lease is committed
        "SELECT result, token FROM idempotency.lease_event(%s::text, %s, holder => %s)",
        [mail, consumer, HOLDER]).fetchone()
    if result == "claimed":
        try:
            send(mail, recipient, subject)
        except smtplib.SMTPRecipientsRefused as error:      # surely not sent, and never will be
            conn.execute("SELECT idempotency.release_lease(%s::text, %s, %s, error => %s, park => true)",
                         [mail, token, consumer, str(error)])
        except ConnectionRefusedError:                      # surely not sent: the attempt does not count
            conn.execute("SELECT idempotency.release_lease(%s::text, %s, %s, retry_after => '5 s')",
                         [mail, token, consumer])
        except (OSError, smtplib.SMTPException) as error:   # perhaps sent
            conn.execute("SELECT idempotency.release_lease(%s::text, %s, %s, error => %s)",
                         [mail, token, consumer, str(error)])
        else:
            with conn.transaction():
                conn.execute("SELECT idempotency.complete_event(%s::text, %s, token => %s)", [mail, consumer, token])
                conn.execute("UPDATE mails SET sent_at = now() WHERE id = %s", [mail])
    elif result == "dead":                      # an operator decides
        conn.execute("UPDATE mails SET gave_up_at = now() WHERE id = %s", [mail])
    # busy: another process has it, or its pause lasts; duplicate: it has just been sent


def send(mail, recipient, subject):
    message = EmailMessage()
    message["Message-ID"] = f"<{mail}@shop.example>"        # the same in each attempt, so that repeats can be told
    message["From"], message["To"], message["Subject"] = "shop@shop.example", recipient, subject
    with smtplib.SMTP("localhost", int(os.environ["SMTP_PORT"]), timeout=20) as smtp:
        smtp.send_message(message)


def main():
    with psycopg.connect(autocommit=True) as conn:
        while True:
            try:
                send_mails(conn, sys.argv[1])
            except psycopg.Error as error:
                if error.sqlstate != "ID007":
                    raise
                print("another process has taken the mail over:", error, file=sys.stderr)
            time.sleep(1)


if __name__ == "__main__":
    main()
# <<<
