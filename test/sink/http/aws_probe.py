#!/usr/bin/env python3
"""A client of AWS for the tests, with Amazon's SDK, in an environment of its own (test/setup/http.sh aws).

Reads lines of JSON {endpoint, service, call, arguments, region, key, secret, token} and answers
each with a line: {"ok": what the call gave} or {"error": text}.
"""
import base64
import functools
import json
import sys

import boto3
from botocore.config import Config

CONFIG = Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=30)


@functools.cache
def client(endpoint, service, region, key, secret, token):
    return boto3.client(service, endpoint_url=endpoint, region_name=region, aws_access_key_id=key, aws_secret_access_key=secret,
                        aws_session_token=token, config=CONFIG)


def plain(value):
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


for line in sys.stdin:
    q = json.loads(line)
    try:
        c = client(q["endpoint"], q["service"], q["region"], q["key"], q["secret"], q.get("token"))
        answer = getattr(c, q["call"])(**q["arguments"])
        answer.pop("ResponseMetadata", None)
        print(json.dumps({"ok": answer}, default=plain), flush=True)
    except Exception as e:  # noqa: the test judges it
        print(json.dumps({"error": f"{type(e).__name__}: {e}"}), flush=True)
