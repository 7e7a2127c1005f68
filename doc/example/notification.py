"""The notification service: tells workers of their shifts.

It gets the events of the labour service as webhooks, as often as it takes, and claims each:
the claim and the notification are one COMMIT.
"""

import json
import os
from datetime import timedelta

from database import engine_for
from fastapi import FastAPI, Request, Response
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from standardwebhooks import Webhook, WebhookVerificationError

app = FastAPI()
sessions = async_sessionmaker(engine_for(os.environ["NOTIFICATION_DB"]))
hook = Webhook(os.environ["WEBHOOK_SECRET"])

CLAIM = text("""
    SELECT idempotency.claim_event(CAST(:id AS uuid), consumer => 'notification', wait => CAST(:wait AS interval))""")
NOTIFY = text("INSERT INTO notifications (shift, worker) VALUES (:shift, :worker)")
COMPLETE = text("SELECT idempotency.complete_event(CAST(:id AS uuid), consumer => 'notification')")


@app.post("/events")
async def receive(request: Request):
    body = await request.body()
    try:
        hook.verify(body, dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    event, shift = request.headers["webhook-id"], json.loads(body)
    async with sessions.begin() as session:
        verdict = await session.scalar(CLAIM, {"id": event, "wait": timedelta(seconds=1)})
        if verdict == "claimed":
            await session.execute(NOTIFY, {"shift": shift["shift"], "worker": shift["worker"]})
            await session.execute(COMPLETE, {"id": event})
    return Response(status_code=503 if verdict == "busy" else 204)      # a duplicate was handled before


@app.exception_handler(DBAPIError)
async def try_again(request, error):
    return Response(status_code=503)            # the relay sends the event again
