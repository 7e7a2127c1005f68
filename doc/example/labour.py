"""The labour service: assigns shifts.

A shift, its event and the answer to the request are one COMMIT.  So a client that got no
answer sends the request again, with the same key, and the shift is assigned once.
"""

import json
import os

from database import engine_for
from fastapi import FastAPI, Header, Response
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker

app = FastAPI()
sessions = async_sessionmaker(engine_for(os.environ["LABOUR_DB"]))

CLAIM = text("""
    SELECT c.result, c.status, c.body
    FROM idempotency.claim_request(:key, 'shifts', idempotency.canonical_hash(CAST(:request AS jsonb)), 'labour') AS c""")
ASSIGN = text("INSERT INTO shifts (worker, hours) VALUES (:worker, :hours) RETURNING id")
ENQUEUE = text("""
    SELECT idempotency.outbox_enqueue('shift', CAST(:shift AS text), 'ShiftAssigned', CAST(:payload AS jsonb))""")
COMPLETE = text("""
    SELECT idempotency.complete_request(:key, 'shifts', 201, body => CAST(:body AS bytea), consumer => 'labour')""")


class Shift(BaseModel):
    worker: str
    hours: int


def answer(status, body=b"", **headers):
    return Response(body, status, headers, "application/json")


@app.post("/shifts")
async def assign(shift: Shift, idempotency_key: str = Header()):
    async with sessions.begin() as session:
        claim = (await session.execute(CLAIM, {"key": idempotency_key, "request": shift.model_dump_json()})).one()
        if claim.result == "replay":
            return answer(claim.status, claim.body)
        if claim.result != "started":           # in_progress: come again; mismatch: the key was another request's
            return answer(409 if claim.result == "in_progress" else 422, **{"Retry-After": "1"})
        number = await session.scalar(ASSIGN, shift.model_dump())
        payload = json.dumps({"shift": number, **shift.model_dump()})
        await session.execute(ENQUEUE, {"shift": str(number), "payload": payload})
        await session.execute(COMPLETE, {"key": idempotency_key, "body": payload.encode()})
    return answer(201, payload)                 # committed


@app.exception_handler(DBAPIError)
async def try_again(request, error):
    """The database is away, or restarts: nothing is known to have committed, and the repeat finds out."""
    return answer(503, **{"Retry-After": "1"})
